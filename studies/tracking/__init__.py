"""A study in MLflow."""
