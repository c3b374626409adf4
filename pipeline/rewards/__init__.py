"""Rewards (what PPO is trained on) and judges (what it is judged by)."""
