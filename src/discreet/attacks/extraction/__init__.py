"""Attacks that ask what a trained model memorized, and who a released text, vector or pseudonym belongs to."""
