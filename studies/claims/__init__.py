"""The claims of a study: their registration, and the verdicts of its records."""
