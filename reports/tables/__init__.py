"""The tables, and what a table is."""
