"""What every trial stands on: the graph of stages, the store of finished ones, where files lie, and what is
recorded."""
