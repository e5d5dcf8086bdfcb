"""Attacks that read text out of the gradient that a client shares."""
