"""Use language models on sensitive text without giving the text away."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> where it lives, in groups. Imported on first use, so that `import discreet` stays quick.
_PUBLIC = {
    # Train and use a classifier
    "TextClassifier": "discreet.estimator",
    "TrainingPlan": "discreet.training.plan",
    "TrainSettings": "discreet.models.settings",
    "Job": "discreet.training.loop",
    "train": "discreet.training.loop",
    "SearchPlan": "discreet.training.tuning",
    "tune": "discreet.training.tuning",
    "evaluate": "discreet.training.evaluate",
    "predict": "discreet.training.evaluate",
    "load_run": "discreet.runs.folder",
    "Classifier": "discreet.models.classifier",
    "ModelSettings": "discreet.models.classifier",
    # Train a module of your own, in a loop of your own
    "make_private": "discreet.integrations.torch",
    "PrivateTraining": "discreet.integrations.torch",
    # Text
    "load": "discreet.data.sources",
    "Corpus": "discreet.data.corpus",
    "TextSource": "discreet.data.sources",
    "Columns": "discreet.data.sources",
    "without_overlap": "discreet.data.corpus",
    "Poisson": "discreet.data.samplers",
    "FixedSize": "discreet.data.samplers",
    "Shuffled": "discreet.data.samplers",
    "Decoys": "discreet.protections.local.decoys",
    # Protections
    "DPSGD": "discreet.protections.dp_sgd",
    "DirDPSGD": "discreet.protections.dir_dp_sgd",
    "TextHide": "discreet.protections.texthide",
    "InstanceEncoding": "discreet.protections.instance_encoding",
    "LocalPrivacy": "discreet.protections.local.protection",
    "SanText": "discreet.protections.words.swap",
    "SanTextPlus": "discreet.protections.words.swap",
    "NoisyWords": "discreet.protections.words.swap",
    "WordSwap": "discreet.protections.words.swap",
    "WordTable": "discreet.protections.words.table",
    "TokenNoise": "discreet.protections.words.token_noise",
    "LDPLayer": "discreet.protections.local.layer",
    "UserSide": "discreet.local.client",
    "ServerSide": "discreet.local.server",
    # Guarantees and ledgers
    "Guarantee": "discreet.core.guarantee",
    "Adjacency": "discreet.core.guarantee",
    "guarantee": "discreet.accounting.interpret",
    "Ledger": "discreet.accounting.ledger",
    "people_totals": "discreet.runs.people",
    "Budget": "discreet.accounting.ledger",
    # Mechanisms and clipping
    "Gaussian": "discreet.mechanisms.gaussian",
    "Laplace": "discreet.mechanisms.laplace",
    "L2Laplace": "discreet.mechanisms.laplace",
    "VonMisesFisher": "discreet.mechanisms.von_mises_fisher",
    "PrivUnit": "discreet.mechanisms.priv_unit",
    "RandomizedResponse": "discreet.mechanisms.randomized_response",
    "DiscreteGaussian": "discreet.mechanisms.discrete",
    "DiscreteLaplace": "discreet.mechanisms.discrete",
    "WordChoice": "discreet.mechanisms.word_metric",
    "WordNoise": "discreet.mechanisms.word_metric",
    "Tape": "discreet.clipping.tape",
    "Flat": "discreet.clipping.tape",
    "PerLayer": "discreet.clipping.tape",
    "Automatic": "discreet.clipping.tape",
    "clipped_sum": "discreet.clipping.tape",
    # Releases and attacks
    "Attack": "discreet.attacks.base",
    "GradientRelease": "discreet.core.types",
    "Guess": "discreet.core.types",
    "ModelRelease": "discreet.core.types",
    "PositionRows": "discreet.attacks.rows",
    "Release": "discreet.core.types",
    "RepresentationRelease": "discreet.core.types",
    "Subspace": "discreet.attacks.span.subspace",
    "TextRelease": "discreet.core.types",
    "AttackRequest": "discreet.experiment.attack.request",
    "BlindReconstruction": "discreet.attacks.representation.blind",
    "CausalPrior": "discreet.models.causal_prior",
    "Dager": "discreet.attacks.span.dager",
    "Decepticons": "discreet.attacks.crafted.decepticons",
    "Dlg": "discreet.attacks.matching.lamp_tag_dlg",
    "EmbeddingInversion": "discreet.attacks.representation.inversion",
    "EmbeddingRows": "discreet.attacks.rows",
    "InstanceReconstruction": "discreet.attacks.representation.instance",
    "Knowledge": "discreet.core.types",
    "Lamp": "discreet.attacks.matching.lamp_tag_dlg",
    "LanguageModel": "discreet.models.language_model",
    "Leakage": "discreet.core.types",
    "MaskedDLG": "discreet.attacks.matching.masked_dlg",
    "Metric": "discreet.metrics.table",
    "NGram": "discreet.models.ngram",
    "OneOfN": "discreet.attacks.identification",
    "RepRecon": "discreet.attacks.representation.reprecon",
    "Scene": "discreet.experiment.attack.scene",
    "SceneRequest": "discreet.experiment.attack.scene",
    "Similarity": "discreet.attacks.representation.similarity",
    "Tag": "discreet.attacks.matching.lamp_tag_dlg",
    "WordDraws": "discreet.attacks.matching.word_draws",
    "hidden_release": "discreet.releases.gradient",
    "load_scene": "discreet.experiment.attack.scene",
    "open_release": "discreet.releases.gradient",
    "protected_release": "discreet.releases.gradient",
    "representation_release": "discreet.releases.representation",
    "attack": "discreet.experiment.attack.own_model",
    "attack_once": "discreet.experiment.attack.runner",
    "text_leakage": "discreet.metrics.table",
    # Studies and reports
    "Goal": "discreet.study.file",
    "Study": "discreet.study.file",
    "StudyResult": "discreet.study.result",
    "write_report": "discreet.report.page",
    # The rest
    "Rng": "discreet.core.randomness",
    "DiscreetError": "discreet.core.errors",
}


# Packages with a front door of their own: `discreet.study.run("study.toml")`.
_PACKAGES = ("study",)

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"discreet.{name}")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES]
