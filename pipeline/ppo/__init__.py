"""The mathematics of PPO as pure functions over tensors, and the loop that uses them."""
