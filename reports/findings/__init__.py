"""Findings from records: estimates of every arm, effects, drift, verdicts."""
