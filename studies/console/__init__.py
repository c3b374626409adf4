"""The commands, and what they show on a terminal."""
