"""The definition of a study: its file, its checks, its arms, and its cells."""
