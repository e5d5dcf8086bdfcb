"""Descriptions of a release and of the attacker's knowledge, as plain values and in words.

The command line, the report and the explorer use the same wording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.core.errors import UnsupportedError
from discreet.core.types import (
    TRAINING,
    GradientRelease,
    Knowledge,
    ModelRelease,
    Release,
    RepresentationRelease,
    TextRelease,
)

if TYPE_CHECKING:
    from discreet.models.base import TextModel

GRADIENT, REPRESENTATION, TEXT = GradientRelease.kind, RepresentationRelease.kind, TextRelease.kind
MODEL = ModelRelease.kind
READS = {
    GRADIENT: "gradients",
    REPRESENTATION: "sentence vectors",
    MODEL: "the trained model",
    TEXT: "released texts",
}  # by the kind of release that an attack reads
NOISY = "gradients under the noise of dp-sgd or dir-dp-sgd"  # the releases that 1-of-n reads
LEAVES = {**READS, TEXT: "gradients of rewritten texts"}  # by the place of a protection
# Descriptions of the entries of `Knowledge.extra`.
_EXTRA = {
    "prior": "a language model fitted to the texts above",
    "vectors": "the vectors of the candidates",
    "public": "the vectors of the texts above",
    "auxiliary": "the vectors of the texts above",
    "pairs": "protected and unprotected vectors of the texts above, which it computed itself",
}


@dataclass(frozen=True)
class Misfit:
    """Why an attack does not fit a protection: what it reads, and the place where the protection is applied.

    >>> print(Misfit(READS[REPRESENTATION], "dp-sgd", GRADIENT).error("rss"))
    Expected an attack that fits dp-sgd, got rss, which reads sentence vectors. dp-sgd releases gradients: choose an \
attack on those, or another protection.
    """

    reads: str
    protect: str
    place: str

    @property
    def leaves(self) -> str:
        """What leaves under the protection, in words."""
        return LEAVES.get(self.place, f"{self.place}s")

    def error(self, attack: str, also: str = "") -> UnsupportedError:
        """Return the error for an attack of this name; `also` is added to its message."""
        return UnsupportedError(
            f"Expected an attack that fits {self.protect}, got {attack}, which reads {self.reads}. {self.protect} "
            f"releases {self.leaves}: choose an attack on those, or another protection.{also}"
        )


def release_facts(
    seen: Release,
    model: TextModel,
    origin: str,
    protect: Any,
    *,
    batch_size: int,
    steps: int,
    first_words: int | None = None,
) -> dict[str, Any]:
    """Return a release as plain values: its size, the number of texts and releases, and the protection.

    `origin` names the model.
    """
    facts: dict[str, Any] = {"model": origin, "batch_size": batch_size, "steps": steps}
    if isinstance(seen, GradientRelease):
        labels = ["labels"] if seen.labels is not None else []
        known = ["lengths", *labels] if seen.lengths is not None else labels
        sizes = {name: value.numel() for name, value in seen.gradients.items()}
        facts = {**gradient_facts(sizes, model), **facts, "known": known}
        if first_words is not None:
            facts["first_words"] = first_words
    elif isinstance(seen, RepresentationRelease):
        count, width = seen.vectors.shape
        known = ["labels"] if seen.labels is not None else []
        facts = {"kind": REPRESENTATION, "vectors": int(count), "width": int(width), **facts, "known": known}
    return {**facts, "protection": None if protect is None else protect.facts()}


def attacker_inputs(seen: Release, knows: Knowledge, attacked: Sequence[str], origin: str, crafted: bool) -> list[str]:
    """Return, in words, everything that is passed to an attacker besides the release.

    `attacked` are the attacked texts, `origin` describes the attacker's own texts, and `crafted` says that the attacker
    crafted the model.
    """
    given: list[str] = []
    if knows.model is not None:
        given.append("the model and its weights" + (", which it crafted" if crafted else ""))
    if isinstance(seen, GradientRelease):
        given.append(f"the number of texts in a release ({seen.batch_size})")
        given += ["the length of each text in tokens"] if seen.lengths is not None else []
    if isinstance(seen, GradientRelease | RepresentationRelease) and seen.labels is not None:
        given.append("the label of each text")
    if isinstance(seen, GradientRelease) and seen.noise_std:
        given.append("the standard deviation of the noise")
    if knows.defence is not None:
        given.append("the settings of the protection")
    if knows.auxiliary:
        given.append(f"{len(knows.auxiliary):,} {origin}")
    if knows.candidates:
        private = len(set(attacked) & set(knows.candidates))
        texts = "private text" if private == 1 else f"{private} private texts"
        which = f"among them the {texts} under attack" if private else "none of them private"
        given.append(f"{len(knows.candidates):,} candidate texts, {which}")
    given += [_EXTRA.get(name, name.replace("_", " ")) for name in knows.extra]
    return list(dict.fromkeys(given))


def gradient_facts(sizes: Mapping[str, int], model: TextModel) -> dict[str, Any]:
    """Return the parameters of the model in a release, and their number of elements."""
    numbers = sum(sizes.values())
    return {
        "kind": GRADIENT,
        "parameters": parameters(set(sizes), numbers, {name for name, _ in model.named_parameters()}),
        "tensors": len(sizes),
        "numbers": numbers,
    }


def parameters(names: set[str], numbers: int, every: set[str]) -> str:
    """Return a short description of a set of parameters.

    >>> parameters({"head.weight", "head.bias"}, 770, {"encoder.weight", "head.weight", "head.bias"})
    'head only: 2 tensors, 770 numbers'
    """
    count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    size = f"{count}, {_short(numbers)} numbers"
    if names == every:
        return f"all {size}"
    if all(name.startswith("head.") for name in names):
        return f"head only: {size}"
    if all(name.startswith(("head.", "pooler.")) for name in names):
        return f"pooler and head: {size}"
    if not any("embeddings" in name for name in names) and all("embeddings" in name for name in every - names):
        return f"all but the embeddings: {size}"
    return f"{size}, of {len(every)} tensors in all"


def describe_release(facts: Mapping[str, Any], *, texts: str | None = None, protection: bool = False) -> str:
    """Return a one-line description of a release.

    `texts` replaces the number of texts; `protection` adds the protection.

    >>> facts = {"kind": "representation", "vectors": 1, "width": 32, "model": "a fresh minilm", "protection": None}
    >>> describe_release(facts, protection=True)
    '1 vector of 32 numbers from 1 text at a fresh minilm, once; no protection'
    """
    if not facts:
        return "not recorded"
    what = _describe_model(facts) if facts.get("kind") == MODEL else _describe_rows(facts, texts)
    if not protection:
        return what
    from discreet.protections.base import in_words  # imported here: it loads torch, which a report does not need

    return f"{what}; {'no protection' if facts.get('protection') is None else in_words(facts['protection'])}"


def _describe_model(facts: Mapping[str, Any]) -> str:
    return f"{facts.get('model', 'the model')} ({facts.get('trained', '?')}: {_short(facts.get('numbers', 0))} numbers)"


def _describe_rows(facts: Mapping[str, Any], texts: str | None) -> str:
    steps = facts.get("steps", 1)
    times = "once" if steps == 1 else f"{steps} times"
    if facts.get("scope") == TRAINING:
        rate = f", each with probability {facts['sampling_rate']:.3g}" if "sampling_rate" in facts else ""
        times = f"in all {steps} updates of its training{rate}"
    if texts is None:
        size = facts.get("batch_size", 1)
        texts = "1 text" if size == 1 else f"{size} texts"
        if facts.get("simulated"):
            texts = f"one of {facts['candidates']} texts"
        if "first_words" in facts:
            texts = f"at most {facts['first_words']} first words of {texts}"
    model = facts.get("model", "the model")
    if facts.get("kind") == GRADIENT:
        simulated = "the simulated gradient" if facts.get("simulated") else "the gradient"
        return f"{simulated} of {texts} at {model}, {times}; {facts.get('parameters', '?')}"
    if facts.get("kind") == TEXT:
        return f"{texts}, {times}"
    count = "1 vector" if facts.get("vectors") == 1 else f"{facts.get('vectors', '?')} vectors"
    return f"{count} of {facts.get('width', '?')} numbers from {texts} at {model}, {times}"


def model_facts(model: TextModel, origin: str, protect: Any) -> dict[str, Any]:
    """Return a trained model that anyone can query as plain values."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "kind": MODEL,
        "model": origin,
        "task": model.task,
        "trained": model.settings.train,
        "numbers": trained,
        "protection": None if protect is None else protect.facts(),
    }


def describe_knowledge(facts: Mapping[str, Any]) -> str:
    """Return a sentence that lists everything the attacker knows besides the release.

    >>> describe_knowledge({"given": ["the model and its weights"]})
    'The attacker also knows: the model and its weights.'
    """
    return f"The attacker also knows: {'; '.join(facts.get('given') or ['nothing'])}."


def _short(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"
