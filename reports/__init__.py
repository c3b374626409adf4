"""Roof: tables, figures and a page from what is recorded. Reads records, never trains, never imports torch."""
