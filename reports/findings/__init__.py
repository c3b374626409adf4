"""From records to what was found: estimates of every arm, effects, drift, verdicts."""
