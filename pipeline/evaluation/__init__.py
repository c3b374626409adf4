"""Evaluation of a policy on held-out prompts, against the reference's answers."""
