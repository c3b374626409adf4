"""Resources of a process: its device and memory, its spending and caps, and optional packages."""
