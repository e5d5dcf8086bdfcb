"""Encoders, classifiers and language models."""
