"""What a study claims, and what its records say of it."""
