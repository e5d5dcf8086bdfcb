"""Protections: each alters a private thing before it leaves, at one place, and says what that costs."""
