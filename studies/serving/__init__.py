"""A policy that answers over HTTP while it trains: `ablate serve`."""
