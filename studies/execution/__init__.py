"""The execution of a study: its start, its hands, the search, executors of clusters, and exports."""
