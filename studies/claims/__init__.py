"""What a study claims, when that was written down, and what its records say of it."""
