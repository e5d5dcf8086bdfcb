"""Local privacy: a vector is bounded and randomized on the user's machine, and only then sent."""
