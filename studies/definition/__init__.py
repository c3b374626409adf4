"""What a study is: its file, its checks, its arms, and the cells that it becomes."""
