"""First floor: many trials. A study asks one question of `pipeline` by running its arms on equal seeds."""
