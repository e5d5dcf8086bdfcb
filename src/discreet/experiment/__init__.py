"""Whole stories: from a corpus to a trained model, and from a release to what an attacker reads in it."""

from discreet.experiment.training import RunRequest, load_corpus, run_training

__all__ = ["RunRequest", "load_corpus", "run_training"]
