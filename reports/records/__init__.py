"""The records of a study, read, checked and tidied."""
