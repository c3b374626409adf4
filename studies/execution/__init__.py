"""How a study is carried out: the driver, the plan, the search, the executors, and what is left of it."""
