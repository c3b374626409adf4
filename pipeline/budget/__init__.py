"""The budget of one trial: sizes, counted and predicted work, a T4's roofline, memory, and the caps."""
