"""The figures, each from findings to a picture; none reads files."""
