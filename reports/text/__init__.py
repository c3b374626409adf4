"""Every sentence of a report."""
