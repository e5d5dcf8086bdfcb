"""Texts with labels, where they come from, how they are sampled, and the secrets planted in them."""
