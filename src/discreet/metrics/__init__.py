"""Metrics: pure functions from a guess and the truth to a number."""
