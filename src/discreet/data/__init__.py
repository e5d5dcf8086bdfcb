"""Texts with labels, where they come from, how they are drawn, and the secrets planted in them."""
