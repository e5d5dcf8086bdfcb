"""Attacks on the span of a layer's inputs, which its weight gradient reveals."""
