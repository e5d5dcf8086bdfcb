"""What is attacked: the rows of a corpus, the public model and public text; made once, used often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.catalog import CORPORA
from discreet.core.errors import UnsupportedError, invalid, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns, load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.training.parts import find_device
from discreet.training.run_folder import Run, load_run, refuse_old_split

_PARTNERS = 500  # public texts that are encoded to mix with, or to run a defence on
_MORE_PUBLIC = f"Attack fewer texts ({setting('examples')}), or give more public text."


@dataclass(frozen=True)
class Scene:
    """The rows that may be attacked, the model whose gradients or vectors are released, and text of the same kind.

    `kept` holds work that several attacks share, such as the inner products of candidates; it is filled as needed.
    """

    model: Classifier = field(repr=False)
    rows: Corpus
    public: tuple[str, ...] = field(default=(), repr=False)
    origin: str = "a fresh model"
    run: Run | None = field(default=None, repr=False)
    public_origin: str = "public texts"  # what the attacker's own text is, after their number
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        corpus: Corpus,
        model: Classifier,
        *,
        split: str | None = None,
        public: Sequence[str] | None = None,
        origin: str = "a fresh model",
        run: Run | None = None,
    ) -> Scene:
        """Return the scene of one split, validation if there is one; what the other rows say is public if not given."""
        name = split or next((s for s in ("validation", "test") if s in corpus.split_names), None)
        rows = corpus.split(name) if name is not None else corpus
        texts = corpus.texts if public is None else tuple(public)
        whence = "other texts of the same corpus" if public is None else "public texts"
        return cls(model, rows, tuple(texts), origin, run, whence)

    def draw(self, count: int, rng: Rng, *, max_words: int | None = None, what: str = "examples") -> Corpus:
        """Return rows with different texts, drawn at random; refuse more than there are."""
        whole(what, count, 1, "It counts the rows to attack.")
        short = list(self._distinct(max_words))
        if len(short) < count:
            limit, longer, fewer = "", "", f"attack fewer ({setting(what)}), or " if short else ""
            if max_words is not None:
                least = min((len(text.split()) for text in self.rows.texts), default=0)
                limit = f" of at most {max_words} words" + ("" if short else f", and its shortest has {least}")
                longer = f"allow longer ones ({setting('max_words')}), {'' if short else 'or '}"
            found = f"{self.rows.name!r} has {len(short)} different texts{limit}"
            raise invalid(
                what, count, f"at most {len(short)}", f"{found}; {longer}{fewer}use another {setting('split')}."
            )
        order = rng.permutation(len(short))[:count]
        return self.rows.take([short[i] for i in order.tolist()])

    def different(self) -> int:
        """Return how many different texts may be drawn."""
        return len(self._distinct(None))

    def _distinct(self, max_words: int | None) -> list[int]:
        seen: set[str] = set()
        found: list[int] = []
        for row, text in enumerate(self.rows.texts):
            plain = _plain(text)
            if plain not in seen and (max_words is None or len(plain.split()) <= max_words):
                seen.add(plain)
                found.append(row)
        return found

    def public_without(self, attacked: Sequence[str]) -> tuple[str, ...]:
        """Return the public text without the texts under attack, whatever their case or spacing."""
        hidden = {_plain(text) for text in attacked}
        return tuple(text for text in self.public if _plain(text) not in hidden)

    def candidates(self, attacked: Sequence[str], count: int | None, rng: Rng) -> tuple[str, ...]:
        """Return the attacked texts among others of the split, in a random order; all of it where no count is given."""
        if self.rows.second is not None:
            raise UnsupportedError("Expected single texts for an attack on vectors, found pairs. Attack other data.")
        others = [text for text in dict.fromkeys(self.rows.texts) if text not in set(attacked)]
        if count is not None:
            if count - len(attacked) > len(others):
                most = len(others) + len(attacked)
                remedy = f"{self.rows.name!r} has {most} different texts; use fewer ({setting('candidates')})."
                raise invalid("candidates", count, f"at most {most}", remedy)
            kept = rng.fork("others").permutation(len(others))[: max(0, count - len(attacked))]
            others = [others[i] for i in kept.tolist()]
        every = [*dict.fromkeys(attacked), *others]
        return tuple(every[i] for i in rng.fork("order").permutation(len(every)).tolist())

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the public encoder's vectors of texts, computed once for each text."""
        from discreet.training.encode import encode

        kept: dict[str, Tensor] = self.kept.setdefault("vectors", {})
        fresh = [text for text in dict.fromkeys(texts) if text not in kept]
        if fresh:
            found = encode(self.model, Corpus("texts", tuple(fresh)), None, "float32").vectors.cpu()
            kept.update(zip(fresh, found, strict=True))
        return torch.stack([kept[text] for text in texts])

    def partners(self, protect: Any, batch: Corpus) -> Corpus | None:
        """Return public text for a protection that mixes with it, without the texts under attack."""
        if protect is None or not protect.needs_public:
            return None
        texts = self.public_without(batch.texts)[:_PARTNERS]
        if len(texts) < len(batch):
            raise invalid("public", len(texts), f"at least {len(batch)} texts", _MORE_PUBLIC)
        return Corpus("public", texts)

    def own(self, public: Sequence[str], least: int) -> Corpus:
        """Return public text as rows on which an attacker can run a defence itself, all with the first label."""
        texts = tuple(public[:_PARTNERS])
        if len(texts) < least:
            raise invalid("public", len(texts), f"at least {least} texts", _MORE_PUBLIC)
        names = self.rows.label_names
        return Corpus("own", texts, labels=(0,) * len(texts) if names else None, label_names=names)

    def prior(self, texts: tuple[str, ...]) -> Any:
        """Return a language model of public text, fitted once."""
        from discreet.models.ngram import NGram

        key = ("prior", hash(texts))
        if key not in self.kept:
            self.kept[key] = NGram.fit(list(texts), self.model.tokenizer)
        return self.kept[key]

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of candidates' gradients, computed once for each set of them."""
        from discreet.attacks.identification import gram_matrix

        key = ("gram", candidates.texts, candidates.second, candidates.labels, candidates.scores)
        if key not in self.kept:
            self.kept[key] = gram_matrix(self.model, candidates)
        found: npt.NDArray[np.float64] = self.kept[key]
        return found


@dataclass(frozen=True)
class SceneRequest:
    """Which text and model are asked for: a source and a fresh model, or a run folder and, by default, its text."""

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
    """Return the scene a request names.

    Guarantee: none, this reads private text; nothing is released yet.
    """
    where = find_device(request.device)
    public = None
    if request.public is not None:
        asked = request.columns or Columns()
        columns = Columns(asked.text, label=None, separator=asked.separator, quoting=asked.quoting)
        columns = Columns() if request.public in CORPORA else columns
        public = load(request.public, columns, validation=0).texts
    if request.run is not None:
        return _scene_of_run(request, request.run, public)
    corpus = load(
        request.source or "notes",
        request.columns,
        seed=request.seed,
        rows=request.rows,
        share=request.share,
        strict=False,
    )
    rng = Rng(request.seed).fork("model")
    model = Classifier.build(corpus, request.model, rng=rng, download=request.download).to(where).eval()
    return Scene.of(corpus, model, split=request.split, public=public, origin=f"a fresh {request.model.encoder}")


def _scene_of_run(request: SceneRequest, folder: Path, public: Sequence[str] | None) -> Scene:
    """Return the scene of a run: its model, and its own text unless other text is named."""
    done = load_run(folder, find_device(request.device))
    asked = done.settings
    own = request.source is None or request.source == asked.data.source
    columns = request.columns
    if own:
        refuse_old_split(asked)
        columns = asked.data.columns
    corpus = load(
        request.source or asked.data.source,
        columns,
        seed=asked.seed if own else request.seed,
        rows=asked.data.rows if own else request.rows,
        share=asked.data.share if own else request.share,
        validation=asked.data.validation if own else None,
        task=done.model.label_task,
        label_names=done.model.label_names or None,
        adjacency=asked.adjacency if own else Adjacency.ZERO_OUT,
    )
    assert isinstance(done.model, Classifier)
    return Scene.of(corpus, done.model, split=request.split, public=public, origin=f"the model of {folder}", run=done)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
