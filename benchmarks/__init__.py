"""Measurements, all sides in one run; never part of the tests."""
