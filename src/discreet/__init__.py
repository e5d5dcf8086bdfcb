"""Use language models on sensitive text without giving the text away."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> where it lives. Imported on first use, so that `import discreet` stays quick.
_PUBLIC = {
    "Adjacency": "discreet.core.guarantee",
    "Automatic": "discreet.clipping.clip",
    "Budget": "discreet.accounting.ledger",
    "Classifier": "discreet.models.classifier",
    "Columns": "discreet.data.sources",
    "Corpus": "discreet.data.corpus",
    "DPSGD": "discreet.protections.dp_sgd",
    "Dager": "discreet.attacks.gradient.dager",
    "DirDPSGD": "discreet.protections.dir_dp_sgd",
    "DiscreetError": "discreet.core.errors",
    "DiscreteGaussian": "discreet.mechanisms.discrete",
    "DiscreteLaplace": "discreet.mechanisms.discrete",
    "EmbeddingRows": "discreet.attacks.gradient.embedding_rows",
    "FixedSize": "discreet.data.samplers",
    "Flat": "discreet.clipping.clip",
    "Gaussian": "discreet.mechanisms.gaussian",
    "Guarantee": "discreet.core.guarantee",
    "Knowledge": "discreet.core.types",
    "L2Laplace": "discreet.mechanisms.laplace",
    "Laplace": "discreet.mechanisms.laplace",
    "Leakage": "discreet.core.types",
    "Ledger": "discreet.accounting.ledger",
    "ModelSettings": "discreet.models.classifier",
    "OneOfN": "discreet.attacks.gradient.one_of_n",
    "PerLayer": "discreet.clipping.clip",
    "Poisson": "discreet.data.samplers",
    "PrivUnit": "discreet.mechanisms.priv_unit",
    "RandomizedResponse": "discreet.mechanisms.randomized_response",
    "Rng": "discreet.core.randomness",
    "Shuffled": "discreet.data.samplers",
    "Tape": "discreet.clipping.tape",
    "TrainSettings": "discreet.training.settings",
    "VonMisesFisher": "discreet.mechanisms.von_mises_fisher",
    "WordChoice": "discreet.mechanisms.word_metric",
    "WordNoise": "discreet.mechanisms.word_metric",
    "clipped_sum": "discreet.clipping.clip",
    "evaluate": "discreet.training.evaluate",
    "guarantee": "discreet.accounting.interpret",
    "load": "discreet.data.sources",
    "load_run": "discreet.training.run_folder",
    "open_release": "discreet.training.release",
    "predict": "discreet.training.evaluate",
    "protected_release": "discreet.training.release",
    "text_leakage": "discreet.metrics.text",
    "train": "discreet.training.loop",
    "without_overlap": "discreet.data.overlap",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
