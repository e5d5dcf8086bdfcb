"""Membership inference: was a text, or any text of an author, in the training data of a model."""
