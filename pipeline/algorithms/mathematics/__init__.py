"""Pure functions over tensors: KL, masked averages, advantages, losses, shaped rewards."""
