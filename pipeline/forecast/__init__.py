"""Forecast of a trial before it starts: shapes, work, memory, and advice. No stage imports it."""
