"""Releases: what an outsider sees of private text, made under a protection, and described in words."""
