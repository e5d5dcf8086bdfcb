"""Attack once: a release, the attack of a family on it, and its score."""
