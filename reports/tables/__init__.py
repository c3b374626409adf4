"""The tables of a report, and their type."""
