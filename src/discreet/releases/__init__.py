"""Releases: what an outsider sees of private text, with or without a protection, and its description in words."""
