"""Which release an attack is for, how it is made under a protection, and what it was, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, Release, RepresentationRelease, TextRelease
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.base import check_protection
from discreet.training.private import as_drawn
from discreet.training.release import hidden_release, open_release, protected_release
from discreet.training.released_vectors import representation_release

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.events import DpEvent
    from discreet.experiment.attack import AttackRequest

GRADIENT, REPRESENTATION, TEXT = GradientRelease.kind, RepresentationRelease.kind, TextRelease.kind
READS = {GRADIENT: "gradients", REPRESENTATION: "sentence vectors"}  # by the kind of an attack
LEAVES = {**READS, TEXT: "gradients of rewritten texts"}  # by the place of a protection


@dataclass(frozen=True)
class Released:
    """What a server sees of a batch, and beside it, for whoever measures, the row behind each vector, if it has such.

    Where vectors were mixed, it is the private row that weighs most.
    """

    seen: Release
    rows: tuple[int, ...] | None = None


def released(
    request: AttackRequest, model: Classifier, batch: Corpus, noise: Rng, public: Corpus | None = None
) -> Released:
    """Return exactly what a server would see of a batch: the kind that the attack is for, under the protection.

    `public` is text that some protections mix with.

    Guarantee: that of the protection for this one release, in the release; none without one.
    """
    refuse_misfit(request)
    protect, delta = request.protect, request.delta
    place = None if protect is None else protect.place
    if request.attack.sees is RepresentationRelease:
        return _vectors(request, model, batch, noise, public)
    if place == GRADIENT:
        return Released(protected_release(model, batch, protect, noise, delta=delta))
    if place == REPRESENTATION:
        return Released(hidden_release(model, batch, protect, noise, public=public, delta=delta))
    if place == TEXT:
        return Released(_rewritten(request, model, batch, noise))
    return Released(open_release(model, batch))


def fits(kind: str, protect: Any) -> bool:
    """Whether a protection lets go of what an attack is for.

    Gradients are released under every protection that is passed through at every step; vectors that are released once
    are all that leaves.
    """
    if protect is None or protect.place == kind:
        return True
    return kind == GRADIENT and (protect.place == TEXT or not getattr(protect, "stored", True))


def refuse_misfit(request: AttackRequest) -> None:
    """Refuse an attack on what its protection does not let go, before any work is done for it."""
    kind, protect = request.attack.sees.kind, request.protect
    if not fits(kind, protect):
        raise misfit(request.label, READS[kind], name_of(protect), protect.place)


def _vectors(request: AttackRequest, model: Classifier, batch: Corpus, noise: Rng, public: Corpus | None) -> Released:
    protect = request.protect
    if protect is not None:
        check_protection(protect, REPRESENTATION)
        protect.check(len(batch), len(batch))
    seen, truth = representation_release(
        model, batch, protect, noise, public=public, batch_size=len(batch), epochs=request.steps, delta=request.delta
    )
    rows = [next(row for row in line if row >= 0) for line in truth.rows.tolist()]
    return Released(seen, tuple(rows))


def _rewritten(request: AttackRequest, model: Classifier, batch: Corpus, noise: Rng) -> GradientRelease:
    """Return the gradient of a batch whose texts were rewritten first; what follows is post-processing."""
    from discreet.accounting.interpret import guarantee

    protect = request.protect
    check_protection(protect, TEXT)
    seen = open_release(model, protect.rewrite(batch, noise.fork("rewrite")))
    found = guarantee(protect.cost(batch), delta=request.delta, adjacency=protect.adjacency, unit=batch.unit_name)
    return replace(seen, guarantee=protect.stated(as_drawn(found, noise)))


def as_they_leave(protect: Any, vectors: Tensor) -> Tensor:
    """Return vectors as they are before mixing and noise: in the coordinates of a release, and cut as it is."""
    if hasattr(protect, "seen"):  # projected and cut to a norm, before mixing and noise
        found: Tensor = protect.seen(vectors).float()
        return found
    projection = getattr(protect, "projection", None)
    return vectors if projection is None else projection(vectors)


def own_pairs(request: AttackRequest, model: Classifier, public: Corpus, rng: Rng) -> tuple[Tensor, Tensor]:
    """Return released vectors of public text and the plain ones behind them, as an attacker makes them for itself.

    It runs the same defence with secrets of its own; where vectors were mixed, the plain one is that of the row that
    weighs most.
    """
    from discreet.training.encode import encode

    plain = encode(model, public, None, "float32").vectors.cpu()
    made = _vectors(request, model, public, rng, public)
    assert made.rows is not None and isinstance(made.seen, RepresentationRelease)
    return made.seen.vectors.cpu(), as_they_leave(request.protect, plain[list(made.rows)])


def name_of(protect: object) -> str:
    """Return a protection's name, or that of its class."""
    return str(getattr(protect, "name", type(protect).__name__))


def misfit(attack: str, reads: str, protect: str, place: str) -> UnsupportedError:
    """Return the error for an attack on one thing and a protection that lets go of another.

    >>> print(misfit("rss", READS[REPRESENTATION], "dp-sgd", GRADIENT))
    Expected an attack that fits dp-sgd, found rss, which reads sentence vectors. Under dp-sgd gradients leave: choose \
an attack on those, or another protection.
    """
    return UnsupportedError(
        f"Expected an attack that fits {protect}, found {attack}, which reads {reads}. Under {protect} "
        f"{LEAVES.get(place, f'{place}s')} leave: choose an attack on those, or another protection."
    )


def release_facts(seen: Release, model: Classifier, request: AttackRequest, origin: str) -> dict[str, Any]:
    """Return what the attacker saw as plain values: which numbers, of how many texts, how often, how protected."""
    facts: dict[str, Any] = {"model": origin, "batch_size": request.batch_size, "steps": request.steps}
    if isinstance(seen, GradientRelease):
        known = [name for name in ("lengths", "labels") if getattr(seen, name) is not None]
        sizes = {name: value.numel() for name, value in seen.gradients.items()}
        facts = {**gradient_facts(sizes, model), **facts, "known": known}
        if request.first_words is not None:
            facts["first_words"] = request.first_words
    elif isinstance(seen, RepresentationRelease):
        count, width = seen.vectors.shape
        known = ["labels"] if seen.labels is not None else []
        facts = {"kind": REPRESENTATION, "vectors": int(count), "width": int(width), **facts, "known": known}
    return {**facts, "protection": None if request.protect is None else request.protect.facts()}


# What an attacker may hold besides, by its name in `Knowledge.extra`.
_EXTRA = {
    "prior": "a language model fitted to the texts above",
    "vectors": "the vectors of the candidates",
    "public": "the vectors of the texts above",
    "auxiliary": "the vectors of the texts above",
    "pairs": "vectors of the texts above that it protected itself, beside the plain ones",
}


def attacker_given(seen: Release, knows: Knowledge, attacked: Sequence[str], origin: str, crafted: bool) -> list[str]:
    """Return in words all that an attacker was given besides the release: what is passed to it, and nothing else.

    `attacked` are the texts under attack, `origin` says where the attacker's own text comes from, and `crafted` whether
    the model whose release it sees is of its making.
    """
    found: list[str] = []
    if knows.model is not None:
        found.append("the model and its weights" + (", which it made itself" if crafted else ""))
    if isinstance(seen, GradientRelease):
        found.append(f"the number of texts in a release ({seen.batch_size})")
    if getattr(seen, "lengths", None) is not None:
        found.append("the length of each text in tokens")
    if getattr(seen, "labels", None) is not None:
        found.append("the label of each text")
    if getattr(seen, "noise_std", 0.0):
        found.append("the standard deviation of the noise")
    if knows.defence is not None:
        found.append("the settings of the protection")
    if knows.auxiliary:
        found.append(f"{len(knows.auxiliary):,} {origin}")
    if knows.candidates:
        private = len(set(attacked) & set(knows.candidates))
        which = "none of them private" if not private else f"among them the {private} private texts under attack"
        found.append(f"{len(knows.candidates):,} candidate texts, {which}")
    found += [_EXTRA.get(name, name.replace("_", " ")) for name in knows.extra]
    return list(dict.fromkeys(found))


def gradient_facts(sizes: Mapping[str, int], model: Classifier) -> dict[str, Any]:
    """Return which of the model's parameters a release holds, and how many numbers they are."""
    numbers = sum(sizes.values())
    return {
        "kind": GRADIENT,
        "parameters": parameters(set(sizes), numbers, {name for name, _ in model.named_parameters()}),
        "tensors": len(sizes),
        "numbers": numbers,
    }


def parameters(names: set[str], numbers: int, every: set[str]) -> str:
    """Return which parameters these are, in a few words.

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


def by_adjacency(
    protect: Any, delta: float, steps: int = 1, promise: Guarantee | None = None, event: DpEvent | None = None
) -> dict[str, float | None]:
    """Return the epsilon of one release, or of several of the same record, under each adjacency; None where none.

    With an `event`, that of a whole training, it is what that costs.

    Where the cost depends on the rows, only what was found for the release, its `promise`, is known: the event of a
    protection of text is that of one word. The batch is known, so who is absent is seen to be: under add/remove nothing
    is stated.
    """
    if protect is None or protect.place != GRADIENT or not hasattr(protect, "event"):
        return {} if promise is None else {promise.adjacency.value: promise.epsilon if promise.exists else None}
    from discreet.accounting.events import SelfComposedDpEvent
    from discreet.accounting.interpret import guarantee

    if event is None:
        event = protect.event if steps == 1 else SelfComposedDpEvent(protect.event, steps)
    columns: dict[str, float | None] = {}
    for adjacency in Adjacency:
        if adjacency is Adjacency.ADD_REMOVE:
            columns[adjacency.value] = None
            continue
        try:
            found = guarantee(event, delta=delta, adjacency=adjacency, unit="record")
            columns[adjacency.value] = found.epsilon if found.exists else None
        except UnsupportedError:
            columns[adjacency.value] = None
    return columns


def _short(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"
