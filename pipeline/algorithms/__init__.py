"""Algorithms that train a policy: the mathematics as pure functions, and one file for each algorithm or family."""
