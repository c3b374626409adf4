"""How a policy answers held-out prompts, and how its answers compare with the reference's."""
