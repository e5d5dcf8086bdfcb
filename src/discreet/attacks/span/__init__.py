"""Attacks that read text from the span of a layer's inputs, which its weight gradient shows."""
