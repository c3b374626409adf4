"""The loop around the mathematics: rollout, update, checkpoints, checks; in one process or in several."""
