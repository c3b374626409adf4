"""From findings, figures and tables to pages."""
