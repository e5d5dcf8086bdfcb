"""Attacks on released sentence vectors."""
