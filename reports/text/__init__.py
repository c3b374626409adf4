"""Every sentence that a reader of a report sees."""
