"""DP instance encoding: utility against epsilon, which layers to encode, and training end to end."""
