"""Canaries of a training run that is audited while it runs: each takes part or not, by its own coin.

- Gradient canaries (white box, dp-sgd): every canary is a unit whose gradient has the full clip norm along a coordinate
  of its own, appended to the model's parameters. All canaries pass through the sampling, the noise and the steps of
  the run. The model's own coordinates and their noise are the same as without canaries, and what is read is independent
  of the private text. Clipping and the batches of the model are not part of it; what the steps did is recorded next to
  the canaries (`discreet.audit.watch`) and checked.
- Example canaries (black box): random sentences under random labels; the score is the loss of the finished model.
- Token canaries (black box, language models): a made-up beginning and a last token of its own; the score is the loss at
  that token alone. If the vectors of tokens are trained, these are tokens that no text has: entries that the vocabulary
  keeps unused, and then new ones, which are added. Otherwise they are the last ones of the vocabulary, which are rare.
  Which tokens are used does not depend on the private text.

The canaries are in the run folder. The record of the steps is next to it, for the owner alone. The run's metrics hold
the digests of both, so a file that was edited, or that belongs to another run, is noticed.

An excluded canary is an empty record under zero-out, is left out under add/remove, and is another canary in its place
under replace-one, so that the neighbours are those of the certificate.

Paper: Steinke, Nasr and Jagielski 2023; arXiv 2503.06808 (token canaries).
Differs: a model whose token vectors are frozen keeps its vocabulary, as new tokens with frozen vectors would not be
    learned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.audit.evidence import Evidence, evidence_for, sampled_canaries
from discreet.audit.one_run import Bits, Scores
from discreet.audit.watch import CANARIES as _ENTRY
from discreet.audit.watch import Watch
from discreet.core.errors import DataError, ModelError, UnsupportedError, invalid, setting, whole
from discreet.core.files import cannot_write, write_atomic
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.canaries import Canary, Space, plant_labels, planted
from discreet.data.corpus import Corpus
from discreet.data.samplers import Sampler
from discreet.models.base import TextModel, evaluating
from discreet.models.classifier import classifier_of
from discreet.models.language_model import LanguageModel, token_losses
from discreet.protections.dp_sgd import DPSGD
from discreet.training.evaluation import by_length, predict
from discreet.training.plan import TrainingPlan
from discreet.training.steps import StepCanaries, Taken

FILE = "audit.json"
GRADIENT, EXAMPLES, TOKENS = KINDS = ("gradient", "examples", "tokens")
_FORMAT = 1
_MOST = 10_000_000
_TOKENS_AT_ONCE = 4096
_UNUSED = re.compile(r"[\[<]\|?(unused|reserved_special_token)[_ -]?\d+\|?[\]>]")  # names of reserved entries
_BEGINNING = 16  # tokens before the last one of a token canary


@dataclass(repr=False)
class _Watched(StepCanaries):
    """Canaries of a run whose private steps may be watched."""

    watching: Watch | None = field(default=None, kw_only=True)
    step: int = field(init=False, default=0)

    def read(self, released: dict[str, Tensor], sums: dict[str, Tensor]) -> None:
        """Record the noise of the current step."""
        if self.watching is not None:
            self.watching.released(released, sums, self.step)

    def watch(self, taken: Taken) -> None:
        """Record what a step did."""
        if self.watching is not None:
            self.watching.took(taken)

    def state(self) -> dict[str, Tensor]:
        """Return what was recorded."""
        return {} if self.watching is None else self.watching.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue the record."""
        if self.watching is not None:
            self.watching.restore(state)


@dataclass(repr=False)
class GradientCanaries(_Watched):
    """Canaries of gradients: coordinate i of an appended vector is the clip norm if canary i is included and sampled.

    `sums` is the total of each canary's coordinate over the steps, in units of the clip norm. `evidence` has the total
    log-likelihood ratio of included against excluded: the optimal score.
    """

    included: Bits
    sampler: Sampler
    norm: float
    evidence: Evidence
    sums: Tensor = field(init=False)
    possible: Bits = field(init=False)  # the canaries that the current step may have sampled

    def __post_init__(self) -> None:
        """Start with nothing read."""
        self.sums = torch.zeros(len(self.included), dtype=torch.float64)
        self.possible = np.ones(len(self.included), dtype=bool)

    @classmethod
    def of(cls, count: int, plan: TrainingPlan, rng: Rng) -> GradientCanaries:
        """Return the canaries of a training run with DP-SGD."""
        protect = plan.protect
        if not isinstance(protect, DPSGD):
            name = "no protection" if protect is None else protect.name
            raise invalid(
                "audit_canaries",
                GRADIENT,
                f"{EXAMPLES} with {name}",
                "Gradient canaries need the noisy sums of dp-sgd.",
            )
        if protect.noise == 0:
            raise UnsupportedError("Expected noise to audit. Without noise nothing is claimed.")
        evidence = evidence_for(count, protect.noise, plan.sampler, protect.correlated)
        return cls(coins(count, rng), plan.sampler, protect.clip.sensitivity, evidence, watching=Watch(plan, count))

    def describe(self) -> object:
        """Return the coins."""
        return GRADIENT, self.included

    def plant(self, sums: dict[str, Tensor], step: int, rng: Rng) -> None:
        """Append the canaries' coordinates to the sums of a step."""
        like = next(iter(sums.values()))
        sampled, self.possible = sampled_canaries(self.sampler, step, len(self.included), rng)
        self.step = step
        contribution = torch.from_numpy((sampled & self.included).astype(np.float32)) * self.norm
        sums[_ENTRY] = contribution.to(like.device, like.dtype)
        if self.watching is not None:
            self.watching.sampled(sampled, step)

    def read(self, released: dict[str, Tensor], sums: dict[str, Tensor]) -> None:
        """Add what was released of the canaries' coordinates."""
        super().read(released, sums)
        scores = released.pop(_ENTRY).double().cpu() / self.norm
        self.sums += scores
        self.evidence.add(scores, self.step, self.possible)

    def state(self) -> dict[str, Tensor]:
        """Return the totals."""
        return {"sums": self.sums, **self.evidence.state, **super().state()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from the totals."""
        super().restore(state)
        self.sums = state["sums"].double().cpu()
        self.evidence.state = {name: state[name].double().cpu() for name in self.evidence.state}

    def record(self) -> dict[str, Any]:
        """Return what an audit reads, as plain values; none of it depends on the private text."""
        return {
            "format": _FORMAT,
            "kind": GRADIENT,
            "included": self.included.astype(int).tolist(),
            "scores": self.evidence.total.tolist(),
            "sums": self.sums.tolist(),
        }


@dataclass(repr=False)
class TextCanaries(_Watched):
    """Canaries of text: rows of the train split, some of them empty records.

    `rows` are the canaries and `others` the rows in whose place they stand if excluded, under replace-one.
    """

    kind: str
    rows: tuple[Canary, ...]
    included: Bits
    others: tuple[Canary, ...] = ()
    zeroed: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    pairs: bool = False

    def describe(self) -> object:
        """Return the coins and the texts."""
        return self.kind, self.included, tuple(row.text for row in self.rows), self.zeroed

    def plant(self, sums: dict[str, Tensor], step: int, rng: Rng) -> None:
        """Add nothing: these canaries are rows, which the finished model scores."""
        self.step = step

    def record(self) -> dict[str, Any]:
        """Return what an audit reads, as plain values: made-up texts, their labels, and the coins."""
        return {
            "format": _FORMAT,
            "kind": self.kind,
            "included": self.included.astype(int).tolist(),
            "texts": [row.text for row in self.rows],
            "labels": [row.label for row in self.rows],
            "targets": [row.score for row in self.rows],
            "others": [row.text for row in self.others],
            "tokens": list(self.tokens),
            "pairs": self.pairs,
        }


def coins(count: int, rng: Rng) -> Bits:
    """Return one fair coin for each canary."""
    if whole("audit", count, 2, "It is the number of canaries.") > _MOST:
        raise invalid("audit", count, f"<= {_MOST:,}", "Plant fewer canaries.")
    return np.asarray(rng.fork("coins").uniform(count) < 0.5)


def plant_texts(
    corpus: Corpus, count: int, adjacency: Adjacency | None, rng: Rng, model: TextModel | None = None
) -> tuple[Corpus, TextCanaries]:
    """Return the corpus with canaries in its train split, and the canaries; with a language model, token canaries.

    Without an adjacency nothing is protected, and excluded canaries are left out.
    """
    included = coins(count, rng)
    twice = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    tokens: tuple[int, ...] = ()
    pairs_of_texts = corpus.second is not None
    if isinstance(model, LanguageModel):
        kind = TOKENS
        rows, tokens = token_canaries(model, twice * count, rng.fork("tokens"))
    else:
        kind = EXAMPLES
        _, rows = plant_labels(corpus, twice * count, rng.fork("examples"), inclusion=None)
    first, others = rows[:count], rows[count:]
    if adjacency is Adjacency.REPLACE_ONE:
        # only the text is exchanged: labels are public under most of these protections
        others = tuple(
            dataclasses.replace(other, label=row.label, score=row.score)
            for row, other in zip(first, others, strict=True)
        )
        pairs = zip(first, others, included.tolist(), strict=True)
        whole_corpus = planted(corpus, [row if is_in else other for row, other, is_in in pairs])
        return whole_corpus, TextCanaries(kind, first, included, others, (), tokens, pairs_of_texts)
    if adjacency is Adjacency.ZERO_OUT:
        whole_corpus = planted(corpus, first)
        start = sum(split == "train" for split in corpus.splits)
        zeroed = tuple((start + np.flatnonzero(~included)).tolist())
        return whole_corpus, TextCanaries(kind, first, included, (), zeroed, tokens, pairs_of_texts)
    chosen = [dataclasses.replace(row, included=is_in) for row, is_in in zip(first, included.tolist(), strict=True)]
    return planted(corpus, chosen), TextCanaries(kind, first, included, (), (), tokens, pairs_of_texts)


def token_canaries(model: LanguageModel, count: int, rng: Rng) -> tuple[tuple[Canary, ...], tuple[int, ...]]:
    """Return made-up beginnings, each with a last token of its own, and these tokens; some may be new to the model."""
    from discreet.data.notes import notes

    longest = min(_BEGINNING, model.max_length // 2)
    beginnings = [
        _shortened(text, longest, model.tokenizer)
        for text in notes(seed=rng.seed() % 2**31, count=max(count, 50)).texts[:count]
    ]
    if model.network is not None and model.trains_tokens:
        return _new_tokens(model, beginnings, rng)
    return _rare_tokens(model, beginnings)


def _new_tokens(model: LanguageModel, beginnings: list[str], rng: Rng) -> tuple[tuple[Canary, ...], tuple[int, ...]]:
    """Return canaries whose last tokens occur in no text: unused entries of the vocabulary first, then added ones."""
    vocabulary = model.tokenizer.get_vocab()
    unused = sorted((name for name in vocabulary if _UNUSED.fullmatch(name)), key=lambda name: vocabulary[name])
    added = (f"<|canary-{number}|>" for number in itertools.count(1))
    names = list(itertools.islice(itertools.chain(unused, added), len(beginnings)))
    tokens = model.add_tokens(names, rng)
    rows = tuple(
        Canary(f"canary-{number}", name, Space((name, ""), 1), before=f"{beginning} ")
        for number, (name, beginning) in enumerate(zip(names, beginnings, strict=True), start=1)
    )
    return rows, tuple(tokens)


def _rare_tokens(model: LanguageModel, beginnings: list[str]) -> tuple[tuple[Canary, ...], tuple[int, ...]]:
    """Return canaries whose last tokens are from the end of the vocabulary.

    Only tokens that a tokenizer reads back as themselves are used.
    """
    count = len(beginnings)
    special = set(model.tokenizer.all_special_ids)
    rows: list[Canary] = []
    tokens: list[int] = []
    for token in range(len(model.tokenizer) - 1, -1, -1):
        if len(rows) == count:
            break
        word = model.tokenizer.decode([token]).strip()
        text = f"{beginnings[len(rows)]} {word}"
        ids = list(model.tokenizer(text)["input_ids"])
        if token in special or not word.isalnum() or token not in ids[-2:] or ids.count(token) != 1:
            continue
        space = Space((word, ""), 1)
        rows.append(Canary(f"canary-{len(rows) + 1}", word, space, before=f"{beginnings[len(rows)]} "))
        tokens.append(token)
    if len(rows) < count:
        raise invalid("audit", count, f"<= {len(rows):,} for this vocabulary", "Each canary needs a token of its own.")
    return tuple(rows), tuple(tokens)


def _shortened(text: str, longest: int, tokenizer: Any) -> str:
    """Return the first words of a text, at least one, that are at most so many tokens."""
    words = text.split()
    while len(words) > 1 and len(tokenizer(" ".join(words))["input_ids"]) > longest:
        words = words[: max(1, len(words) * 2 // 3)]
    return " ".join(words)


def record_path(run: Path) -> Path:
    """Return the file with the record of a run's steps: next to its folder, which may be released, not inside it."""
    return run.with_name(run.name + ".audit.json")


def write(canaries: GradientCanaries | TextCanaries, workspace: Path, out: Path) -> dict[str, str]:
    """Write what an audit reads: the canaries into a run folder, the record of the steps next to it, for the owner.

    Return the digest of each. The record has a random number in it, so its digest tells nothing about it.
    """
    text = json.dumps(canaries.record()) + "\n"
    write_atomic(workspace / FILE, text, private=False)
    digests = {"digest": _digest(text.encode())}
    steps = None if canaries.watching is None else canaries.watching.record()
    if steps is None:
        return digests
    text = json.dumps({"format": _FORMAT, "random": secrets.token_hex(32), **steps}) + "\n"
    try:
        write_atomic(record_path(out), text)
    except OSError as error:
        raise cannot_write(record_path(out), error) from None
    return {**digests, "steps_digest": _digest(text.encode())}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(folder: Path, planted: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what an audit of a run reads, or raise an error if the run has no canaries.

    `planted` is what the metrics of the run say about its audit; a file with another digest is rejected.
    """
    path = folder / FILE
    if planted is None or not path.exists():
        raise ModelError(
            f"Expected canaries in the run {str(folder)!r}, got none: it was not trained for an audit. Train it again "
            f"with {setting('audit', 1000)}, or audit one release of its protection ({setting('protect')})."
        )
    record = _read(path, planted.get("digest"))
    try:
        if record["format"] != _FORMAT or record["kind"] not in KINDS or len(record["included"]) < 2:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DataError(f"Expected the canaries of an audit in {str(path)!r}, but the file is damaged.") from None
    return record


def read_steps(folder: Path, planted: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the record of the steps of a run, or None and the reason why there is none."""
    if planted.get("steps_digest") is None:
        return None, "the run has no steps whose gradients are protected"
    path = record_path(Path(folder).resolve())
    if not path.exists():
        return None, f"{path.name} is not next to the run"
    return _read(path, planted["steps_digest"]), ""


def _read(path: Path, digest: object) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        record = json.loads(data)
        if not isinstance(record, dict):
            raise ValueError
    except (OSError, ValueError):
        raise DataError(f"Expected the canaries of an audit in {str(path)!r}, but the file is damaged.") from None
    if _digest(data) != digest:
        raise DataError(
            f"Expected {str(path)!r} to be the file that this run wrote, but its digest is another one than that in "
            "metrics.json. It was edited, or belongs to another run. Restore it, or train again."
        )
    return record


def scores_of(record: dict[str, Any], model: TextModel | None) -> tuple[Scores, Bits]:
    """Return a score for each canary, larger if it was more likely included, and the coins.

    Guarantee: that of the run; scoring is post-processing.
    """
    included = np.asarray(record["included"], dtype=bool)
    if record["kind"] == GRADIENT:
        return np.asarray(record["scores"], dtype=np.float64), included
    if model is None:
        raise ModelError("Expected the model of the run, to score canaries of text. Load the run.")
    scores = -canary_losses(model, record, record["texts"], record["tokens"][: len(included)])
    if record["others"]:
        scores += canary_losses(model, record, record["others"], record["tokens"][len(included) :])
    return scores, included


@torch.inference_mode()
def canary_losses(
    model: TextModel, record: dict[str, Any], texts: list[str], tokens: list[int]
) -> npt.NDArray[np.float64]:
    """Return the loss of a model on each canary, or on its last token alone."""
    labels, targets = record["labels"], record["targets"]
    corpus = Corpus(
        "canaries",
        tuple(texts),
        second=tuple(texts) if record["pairs"] else None,
        labels=tuple(labels) if model.classes else None,
        scores=tuple(targets) if model.task.has_scores else None,
        label_names=model.label_names,
    )
    if not isinstance(model, LanguageModel):
        answers = np.asarray(predict(classifier_of(model, "an audit"), corpus).values, dtype=np.float64)
        if model.classes:
            return np.asarray(-np.log(np.maximum(answers[np.arange(len(texts)), labels], 1e-30)))
        return np.asarray((answers.reshape(-1) - np.asarray(targets)) ** 2)
    rows = tokens_for(model, corpus)
    losses = np.zeros(len(texts))
    with evaluating(model):
        for places in by_length(rows.lengths, _TOKENS_AT_ONCE):
            scores, wanted, asked = model.token_scores(rows.batch(places).inputs)
            own = torch.tensor([tokens[place] for place in places], device=wanted.device)[:, None]
            losses[places] = (token_losses(scores, wanted) * ((wanted == own) & asked)).sum(1).double().cpu().numpy()
    return losses
