"""Attacks: what an attacker can say about private text from a release and from what it knows."""
