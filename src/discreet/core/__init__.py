"""Shared types and conventions: guarantees, errors, randomness, files and settings."""
