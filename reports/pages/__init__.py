"""Pages from findings, figures and tables."""
