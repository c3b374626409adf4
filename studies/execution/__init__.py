"""How a study is carried out: its start, its hands, the search, executors of clusters, and what is exported."""
