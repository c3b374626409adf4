"""What a study left behind, read, checked and tidied."""
