"""The commands, and their output on a terminal."""
