"""Records made by other programs, into the store: files to trials, rows, units, checks, records."""
