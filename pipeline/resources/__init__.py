"""What a process may use: memory, and what to do when it runs out; how much goes through a network at once; caps."""
