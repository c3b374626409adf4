"""Texts: built-in film reviews with their gold judge, hub data, local files, preference pairs."""
