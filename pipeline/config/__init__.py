"""The configuration of one trial: frozen sections, unknown keys are errors."""
