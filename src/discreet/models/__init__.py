"""Encoders, pooling, heads: from tokens to a prediction."""
