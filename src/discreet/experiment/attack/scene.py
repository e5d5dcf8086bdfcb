"""The data of attacks: the rows of a corpus, the public model and public text, loaded once and shared by attacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.accounting.events import DpEvent
from discreet.accounting.ledger import Ledger
from discreet.catalog import settings_of_protection
from discreet.core.device import find_device
from discreet.core.errors import DataError, UnsupportedError, invalid, setting, whole
from discreet.core.files import cache_folder
from discreet.core.guarantee import Adjacency, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import MODEL
from discreet.data.canaries import Canary, canaries_path, read_canaries
from discreet.data.corpus import Corpus
from discreet.data.sources import IN_PYTHON, Columns, load, names_corpus
from discreet.experiment.attack.request import Findings
from discreet.models.base import TextModel
from discreet.models.build import build_classifier, encode
from discreet.models.classifier import ModelSettings
from discreet.releases.description import model_facts
from discreet.releases.protected import stated_epsilon
from discreet.runs.checkpoint import LEDGER
from discreet.runs.folder import Run, RunChoices, load_run

_PARTNERS = 500  # public texts that are encoded for mixing, or for running the protection on
_MORE_PUBLIC = f"Attack fewer texts ({setting('examples')}), or provide more public text."


@dataclass(frozen=True)
class Target:
    """How the model of a scene was trained: for attacks that ask who or what was in its training data.

    `corpus` has all splits, and its train split is what the model was trained on. `event` is what the training cost
    every unit under `adjacency`, both None without a protection. `guarantee` is that of the model. `cache` is where
    vectors of its texts may be stored, None for a protected run, whose text is not stored a second time. `canaries`
    were planted in its training text, besides that of `corpus`; only the owner of the run has their secrets.
    """

    corpus: Corpus = field(repr=False)
    choices: RunChoices
    event: DpEvent | None = field(default=None, repr=False)
    adjacency: Adjacency | None = None
    guarantee: Guarantee | None = None
    cache: Path | None = None
    canaries: tuple[Canary, ...] = field(default=(), repr=False)

    @property
    def certified(self) -> tuple[DpEvent, Adjacency] | None:
        """What the training cost, for bounds on every attack, or None if nothing is proven about the model.

        A fixed seed of the noise does not invalidate them: the attacks here do not use it.
        """
        stated, event, adjacency = self.guarantee, self.event, self.adjacency
        if stated is None or event is None or adjacency is None:
            return None
        return (event, adjacency) if stated.without_caveat(Caveat.FIXED_SEED).certified else None


@dataclass(frozen=True)
class Scene:
    """The rows that may be attacked, the model whose gradients or vectors are released, and public text.

    `target` describes the training of the model, if it was trained. `cache` holds results that several attacks share,
    such as the inner products of candidates.
    """

    model: TextModel = field(repr=False)
    rows: Corpus
    public: tuple[str, ...] = field(default=(), repr=False)
    origin: str = "a fresh model"
    run: Run | None = field(default=None, repr=False)
    public_origin: str = "public texts"  # describes the attacker's own texts; follows their number
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    target: Target | None = field(default=None, repr=False)
    corpus: Corpus | None = field(default=None, repr=False)  # all splits, of which `rows` is one

    @property
    def everything(self) -> Corpus:
        """All rows of all splits, where they are known, and else the rows that may be attacked."""
        if self.target is not None:
            return self.target.corpus
        return self.rows if self.corpus is None else self.corpus

    @classmethod
    def of(
        cls,
        corpus: Corpus,
        model: TextModel,
        *,
        split: str | None = None,
        public: Sequence[str] | None = None,
        origin: str = "a fresh model",
        run: Run | None = None,
        target: Target | None = None,
    ) -> Scene:
        """Return the scene of one split (default: validation); without `public`, the corpus is the public text."""
        rows = attacked_split(corpus, split)
        texts = corpus.texts if public is None else tuple(public)
        public_origin = "other texts of the same corpus" if public is None else "public texts"
        return cls(model, rows, tuple(texts), origin, run, public_origin, target=target, corpus=corpus)

    def draw(self, count: int, rng: Rng, *, max_words: int | None = None, what: str = "examples") -> Corpus:
        """Return a random sample of rows with distinct texts; raise if there are too few."""
        distinct = check_distinct(self.rows, count, max_words, what)
        order = rng.permutation(len(distinct))[:count]
        return self.rows.take([distinct[i] for i in order.tolist()])

    def count_distinct(self) -> int:
        """Return the number of distinct texts."""
        return len(_distinct(self.rows, None))

    def public_without(self, attacked: Sequence[str]) -> tuple[str, ...]:
        """Return the public text without the attacked texts, ignoring case and spacing."""
        excluded = {_normalized(text) for text in attacked}
        return tuple(text for text in self.public if _normalized(text) not in excluded)

    def candidates(self, attacked: Sequence[str], count: int | None, rng: Rng) -> tuple[str, ...]:
        """Return the attacked texts among others of the split (default: all of them), in random order."""
        if self.rows.second is not None:
            raise UnsupportedError("Expected single texts for an attack on vectors, got pairs. Attack other data.")
        others = [text for text in dict.fromkeys(self.rows.texts) if text not in set(attacked)]
        if count is not None:
            if count - len(attacked) > len(others):
                most = len(others) + len(attacked)
                remedy = f"{self.rows.name!r} has {most} different texts; use fewer ({setting('candidates')})."
                raise invalid("candidates", count, f"at most {most}", remedy)
            sample = rng.fork("others").permutation(len(others))[: max(0, count - len(attacked))]
            others = [others[i] for i in sample.tolist()]
        texts = [*dict.fromkeys(attacked), *others]
        return tuple(texts[i] for i in rng.fork("order").permutation(len(texts)).tolist())

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the public encoder's vectors of texts; each text is encoded once."""

        cached: dict[str, Tensor] = self.cache.setdefault("vectors", {})
        missing = [text for text in dict.fromkeys(texts) if text not in cached]
        if missing:
            vectors = encode(self.model, Corpus("texts", tuple(missing)), None, "float32").vectors.cpu()
            cached.update(zip(missing, vectors, strict=True))
        return torch.stack([cached[text] for text in texts])

    def partners(self, protect: Any, batch: Corpus) -> Corpus | None:
        """Return public text for a protection that mixes rows with it, without the attacked texts."""
        if protect is None or not protect.needs_public:
            return None
        return Corpus("public", _partners(self.public_without(batch.texts), len(batch)))

    def own(self, public: Sequence[str], least: int) -> Corpus:
        """Return public text as rows on which an attacker can run the protection, all with the first label."""
        texts = _partners(public, least)
        names = self.rows.label_names
        return Corpus("own", texts, labels=(0,) * len(texts) if names else None, label_names=names)

    def prior(self, texts: tuple[str, ...]) -> Any:
        """Return a language model fitted to public text; each text is fitted once."""
        from discreet.models.ngram import NGram

        key = ("prior", hash(texts))
        if key not in self.cache:
            self.cache[key] = NGram.fit(list(texts), self.model.tokenizer)
        return self.cache[key]

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of candidates' gradients, computed once for each set of candidates."""
        from discreet.attacks.identification import gram_matrix

        key = ("gram", candidates.texts, candidates.second, candidates.labels, candidates.scores)
        if key not in self.cache:
            self.cache[key] = gram_matrix(self.model, candidates)
        gram: npt.NDArray[np.float64] = self.cache[key]
        return gram


def findings_of_model(scene: Scene, given: Iterable[str], counts: Mapping[str, int], **found: Any) -> Findings:
    """Return what was found about the trained model of a scene, with its facts and the guarantee of its training.

    `given` is what the attacker has, in words, `counts` are further facts, and `found` the other fields of the result.
    """
    target = scene.target
    assert target is not None
    facts = model_facts(scene.model, scene.origin, target.choices.protect)
    return Findings(
        release={**facts, "scope": MODEL, **counts, "given": list(given)},
        guarantee=target.guarantee,
        epsilon_by_adjacency=stated_epsilon(target.guarantee),
        **found,
    )


@dataclass(frozen=True)
class SceneRequest:
    """The text and model to load: a source and a new model, or a run folder and, by default, its text.

    Args:
        source: A source of text, as for `load`; by default the built-in notes.
        columns: The columns to read.
        model: The model that is built for the text.
        run: Instead: the folder of a finished run, with its model and, by default, its text.
        split: The split that is attacked.
        public: Text that the attacker has, as a source.
        rows: The number of rows to keep.
        share: The share of the units to keep.
        seed: Seed of the text and of the first weights.
        device: cpu, cuda or auto.
        download: Download the encoder if this machine does not have it.

    >>> SceneRequest("notes", rows=100).source
    'notes'
    """

    source: str | None = None
    columns: Columns | None = None
    model: ModelSettings = field(default_factory=ModelSettings)
    run: Path | None = None
    split: str | None = None
    public: str | None = None
    rows: int | None = None
    share: float | None = None
    seed: int = 0
    device: str = "auto"
    download: bool = False


def load_scene(request: SceneRequest) -> Scene:
    """Load the text and model of a request.

    Args:
        request: The text and the model.

    Guarantee: none, this reads private text; nothing is released yet.
    """
    device, public = find_device(request.device), None
    if request.public is not None:
        columns = replace(request.columns or Columns(), text_pair=None, label=None, unit=None)
        columns = Columns() if names_corpus(request.public) else columns
        public = load(request.public, columns, validation=0).texts
    if request.run is not None:
        return _scene_of_run(request, request.run, device, public)
    corpus = _requested(request, request.source or "notes", strict=False)
    rng = Rng(request.seed).fork("model")
    model = build_classifier(corpus, request.model, rng=rng, download=request.download).to(device).eval()
    return Scene.of(corpus, model, split=request.split, public=public, origin=f"a fresh {request.model.encoder}")


def _requested(request: SceneRequest, source: str, **known: Any) -> Corpus:
    """Return the text of a source with the columns and the size that are requested."""
    return load(source, request.columns, seed=request.seed, rows=request.rows, share=request.share, **known)


def _scene_of_run(request: SceneRequest, folder: Path, device: torch.device, public: Sequence[str] | None) -> Scene:
    """Return the scene of a run: its model, and its own text unless the request names another source."""
    run = load_run(folder, device)
    settings = run.settings
    own = request.source is None or request.source == settings.data.source
    if own:
        corpus = corpus_of_run(run)
    else:
        names = run.model.label_names or None
        source = request.source or settings.data.source
        corpus = _requested(request, source, task=run.model.label_task, classes=names)
    origin = f"the model of {folder}"
    target = _target(run, folder, corpus) if own else None
    return Scene.of(corpus, run.model, split=request.split, public=public, origin=origin, run=run, target=target)


def corpus_of_run(run: Run, **changes: Any) -> Corpus:
    """Return the text of a run with the splits that it was trained with, read again from its source.

    `changes` are other values of its source, such as the name of other text with the same columns.

    Guarantee: none, this reads private text.
    """
    settings, model = run.settings, run.model
    source = replace(settings.data, seed=settings.seed, task=model.label_task, classes=model.label_names or None)
    source = replace(source, **changes)
    if source.source == IN_PYTHON:
        raise DataError(
            f"Expected a run that was trained on a file, got one that was trained on {IN_PYTHON}. A run folder holds "
            f"no text: name a file ({setting('data')}). Attacks on the trained model need the rows that it was trained "
            "on; for them, train on a file."
        )
    return source.load(settings.adjacency)


def _target(run: Run, folder: Path, corpus: Corpus) -> Target:
    """Return how the model of a run was trained, with the spends of its own ledger."""
    secrets = canaries_path(folder)
    canaries = read_canaries(secrets) if run.settings.canaries is not None and secrets.exists() else ()
    if run.settings.protect is None:
        return Target(corpus, run.settings, cache=cache_folder(), canaries=canaries)
    if not (folder / LEDGER).exists():
        return Target(corpus, run.settings, guarantee=run.guarantee, canaries=canaries)
    statement = Ledger.read(folder / LEDGER)
    return Target(corpus, run.settings, statement.event, statement.adjacency, run.guarantee, canaries=canaries)


def _partners(public: Sequence[str], least: int) -> tuple[str, ...]:
    if len(public[:_PARTNERS]) < least:
        raise invalid("public", len(public[:_PARTNERS]), f"at least {least} texts", _MORE_PUBLIC)
    return tuple(public[:_PARTNERS])


def text_keys(corpus: Corpus) -> list[tuple[str, ...]]:
    """Return the text or texts of each row, without case and spacing."""
    return [tuple(map(_normalized, texts)) for texts in corpus.row_texts]


def attacked_split(corpus: Corpus, split: str | None = None) -> Corpus:
    """Return the rows that may be attacked: those of a split, by default of the validation or the test split."""
    name = split or next((s for s in ("validation", "test") if s in corpus.split_names), None)
    return corpus.split(name) if name is not None else corpus


def check_distinct(rows: Corpus, count: int, max_words: int | None = None, what: str = "examples") -> list[int]:
    """Return the first row of each distinct text of at most `max_words` words; raise if there are too few."""
    whole(what, count, 1, "It is the number of rows to attack.")
    distinct = _distinct(rows, max_words)
    if len(distinct) < count:
        limit, longer, fewer = "", "", f"attack fewer ({setting(what)}), or " if distinct else ""
        if max_words is not None:
            least = min((len(text.split()) for text in rows.texts), default=0)
            limit = f" of at most {max_words} words" + ("" if distinct else f", and its shortest has {least}")
            longer = f"allow longer ones ({setting('max_words')}), {'' if distinct else 'or '}"
        available = f"{rows.name!r} has {len(distinct)} different texts{limit}"
        remedy = f"{available}; {longer}{fewer}use another {setting('split')}."
        raise invalid(what, count, f"at most {len(distinct)}", remedy)
    return distinct


def _distinct(rows: Corpus, max_words: int | None) -> list[int]:
    first: dict[str, int] = {}
    for row, text in enumerate(rows.texts):
        first.setdefault(_normalized(text), row)
    return [row for text, row in first.items() if max_words is None or len(text.split()) <= max_words]


def _normalized(text: str) -> str:
    return " ".join(text.lower().split())


def protection_of_run(run: Run | None) -> tuple[str, dict[str, Any]] | None:
    """Return the name and settings of the protection of a run, with the calibrated noise instead of the budget."""
    if run is None or run.settings.protect is None:
        return None
    protect = run.settings.protect
    # Training calibrates some settings of a protection of gradients; a protection of vectors keeps its settings.
    own = set(settings_of_protection(protect.found_by)) if protect.place == "gradient" else set()
    calibrated = {k: v for k, v in (run.metrics.get("protection") or {}).items() if k in own and v is not None}
    settings = {k: v for k, v in protect.as_table().items() if k not in {"name", "delta", "true_positive_rate"}}
    if "noise_multiplier" in calibrated or "kappa" in calibrated:
        settings.pop("epsilon", None)  # the budget of the whole training run
    return protect.found_by, {**settings, **calibrated}
