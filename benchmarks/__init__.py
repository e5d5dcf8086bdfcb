"""Measurements of speed, memory and quality, all sides in one run; never part of the tests."""
