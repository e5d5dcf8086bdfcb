"""Use language models on sensitive text without giving the text away."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> where it lives. Imported on first use, so that `import discreet` stays quick.
_PUBLIC = {
    "Adjacency": "discreet.core.guarantee",
    "Attack": "discreet.attacks.base",
    "AttackRequest": "discreet.experiment.attack",
    "Automatic": "discreet.clipping.clip",
    "BlindReconstruction": "discreet.attacks.representation.blind",
    "Budget": "discreet.accounting.ledger",
    "CausalPrior": "discreet.models.causal_prior",
    "Classifier": "discreet.models.classifier",
    "Columns": "discreet.data.sources",
    "Corpus": "discreet.data.corpus",
    "DPSGD": "discreet.protections.dp_sgd",
    "Dager": "discreet.attacks.span.dager",
    "Decepticons": "discreet.attacks.crafted.decepticons",
    "Decoys": "discreet.protections.decoys",
    "DirDPSGD": "discreet.protections.dir_dp_sgd",
    "DiscreetError": "discreet.core.errors",
    "DiscreteGaussian": "discreet.mechanisms.discrete",
    "DiscreteLaplace": "discreet.mechanisms.discrete",
    "Dlg": "discreet.attacks.matching.lamp_tag_dlg",
    "EmbeddingInversion": "discreet.attacks.representation.inversion",
    "EmbeddingRows": "discreet.attacks.rows",
    "FixedSize": "discreet.data.samplers",
    "Flat": "discreet.clipping.clip",
    "Gaussian": "discreet.mechanisms.gaussian",
    "Goal": "discreet.study.file",
    "GradientRelease": "discreet.core.types",
    "Guarantee": "discreet.core.guarantee",
    "Guess": "discreet.core.types",
    "InstanceEncoding": "discreet.protections.instance_encoding",
    "InstanceReconstruction": "discreet.attacks.representation.instance",
    "Knowledge": "discreet.core.types",
    "L2Laplace": "discreet.mechanisms.laplace",
    "LDPLayer": "discreet.protections.ldp_layer",
    "Lamp": "discreet.attacks.matching.lamp_tag_dlg",
    "LanguageModel": "discreet.models.language_head",
    "Laplace": "discreet.mechanisms.laplace",
    "Leakage": "discreet.core.types",
    "Ledger": "discreet.accounting.ledger",
    "MaskedDLG": "discreet.attacks.matching.masked_dlg",
    "ModelRelease": "discreet.core.types",
    "ModelSettings": "discreet.models.classifier",
    "NGram": "discreet.models.ngram",
    "OneOfN": "discreet.attacks.identification",
    "PerLayer": "discreet.clipping.clip",
    "Poisson": "discreet.data.samplers",
    "PositionRows": "discreet.attacks.rows",
    "PrivUnit": "discreet.mechanisms.priv_unit",
    "RandomizedResponse": "discreet.mechanisms.randomized_response",
    "Release": "discreet.core.types",
    "RepRecon": "discreet.attacks.representation.reprecon",
    "RepresentationRelease": "discreet.core.types",
    "Rng": "discreet.core.randomness",
    "Scene": "discreet.experiment.scene",
    "SceneRequest": "discreet.experiment.scene",
    "ServerSide": "discreet.training.local",
    "Shuffled": "discreet.data.samplers",
    "Similarity": "discreet.attacks.representation.similarity",
    "Study": "discreet.study.file",
    "StudyResult": "discreet.study.result",
    "Subspace": "discreet.attacks.span.subspace",
    "Tag": "discreet.attacks.matching.lamp_tag_dlg",
    "Tape": "discreet.clipping.tape",
    "TextHide": "discreet.protections.texthide",
    "TextRelease": "discreet.core.types",
    "TokenNoise": "discreet.protections.token_noise",
    "TrainSettings": "discreet.training.settings",
    "UpdateRelease": "discreet.core.types",
    "UserSide": "discreet.training.local",
    "VonMisesFisher": "discreet.mechanisms.von_mises_fisher",
    "WordChoice": "discreet.mechanisms.word_metric",
    "WordDraws": "discreet.attacks.matching.word_draws",
    "WordNoise": "discreet.mechanisms.word_metric",
    "WordSwap": "discreet.protections.word_swap",
    "WordTable": "discreet.protections.word_table",
    "clipped_sum": "discreet.clipping.clip",
    "evaluate": "discreet.training.evaluate",
    "guarantee": "discreet.accounting.interpret",
    "hidden_release": "discreet.training.release",
    "load": "discreet.data.sources",
    "load_run": "discreet.training.run_folder",
    "load_scene": "discreet.experiment.scene",
    "open_release": "discreet.training.release",
    "predict": "discreet.training.evaluate",
    "protected_release": "discreet.training.release",
    "representation_release": "discreet.training.released_vectors",
    "run_attack": "discreet.experiment.attack",
    "text_leakage": "discreet.metrics.text",
    "train": "discreet.training.loop",
    "without_overlap": "discreet.data.overlap",
    "write_report": "discreet.report.page",
}

_RENAMED = {"SubspaceOptimiser": "Subspace"}  # former names, which keep working

# Packages with a front door of their own: `discreet.study.run("study.toml")`.
_PACKAGES = ("study",)

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    name = _RENAMED.get(name, name)
    if name in _PACKAGES:
        return importlib.import_module(f"discreet.{name}")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES]
