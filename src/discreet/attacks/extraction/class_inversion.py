"""Class inversion: the text that a class of a classifier likes best, found by following the gradient of its score.

Paper: Fredrikson, Jha and Ristenpart 2015, Model inversion attacks that exploit confidence information and basic
countermeasures. Differs: the input is text, so the search changes whole words: at each step the gradient proposes
replacements of words and the one with the best score is kept, as in greedy coordinate gradient search (Zou et al.
2023). Only whole words of the vocabulary are used, so that the result can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.base import ExtractionAttack, Returns
from discreet.core.errors import UnsupportedError, one_of, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, ModelRelease
from discreet.models.base import evaluating
from discreet.models.classifier import Classifier

_SHORTEST_WORD = 3


@dataclass(frozen=True)
class ClassInversion(ExtractionAttack):
    """Return for each class of a classifier a text of `words` words with the highest probability of that class.

    The search starts `restarts` times from random words and takes `steps` steps; in each, `swaps` replacements are
    tried, sampled from the `nearest` words that the gradient proposes for each place. `class_name` restricts it to one
    class. In the guess, `texts` are the texts and `scores` their probabilities, in the order of the classes.
    """

    words: int = 8
    steps: int = 30
    swaps: int = 64
    nearest: int = 64
    restarts: int = 2
    class_name: str = ""

    name: ClassVar[str] = "class-inversion"
    returns: ClassVar[Returns] = Returns.TEXTS

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("words", "steps", "swaps", "nearest", "restarts"):
            whole(name, getattr(self, name))

    def classes(self, model: Classifier) -> list[int]:
        """Return the numbers of the classes to invert."""
        if self.class_name:
            return [model.label_names.index(one_of("class_name", self.class_name, model.label_names))]
        return list(range(len(model.label_names)))

    def run(self, seen: ModelRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the text that each class likes best."""
        model = invertible(seen.model)
        vocabulary = torch.from_numpy(whole_words(model.tokenizer)).to(model.device)
        texts, scores = [], []
        with evaluating(model):
            for number in self.classes(model):
                best_score, best = -np.inf, torch.empty(0)
                for restart in range(self.restarts):
                    score, tokens = self._search(model, vocabulary, number, rng.fork("search", number, restart))
                    if score > best_score:
                        best_score, best = score, tokens
                texts.append(str(model.tokenizer.decode(best.tolist())))
                scores.append(float(np.exp(best_score)))
        return Guess(texts=tuple(texts), scores=tuple(scores))

    def _search(self, model: Classifier, vocabulary: Tensor, number: int, rng: Rng) -> tuple[float, Tensor]:
        """Return the log-probability of the class for the best text of one search, and its tokens."""
        source = rng.numpy("Class inversion")
        size = len(vocabulary)
        tokens = vocabulary[torch.from_numpy(source.integers(0, size, self.words)).to(model.device)]
        best = float(_scores(model, tokens[None])[0, number])
        words = model.encoder.get_input_embeddings().weight.detach()  # type: ignore[operator]
        for _ in range(self.steps):
            gains = _gradient(model, tokens, number) @ words[vocabulary].mT  # (words, vocabulary)
            proposals = gains.topk(min(self.nearest, size), dim=-1).indices
            places = source.integers(0, self.words, self.swaps)
            picks = source.integers(0, proposals.shape[1], self.swaps)
            tried = tokens.repeat(self.swaps, 1)
            rows = torch.arange(self.swaps)
            where, which = (torch.from_numpy(values).to(model.device) for values in (places, picks))
            tried[rows, where] = vocabulary[proposals[where, which]]
            scores = _scores(model, tried)[:, number]
            winner = int(scores.argmax())
            if float(scores[winner]) > best:
                best, tokens = float(scores[winner]), tried[winner]
        return best, tokens


def invertible(model: Any) -> Classifier:
    """Return a model as a classifier of single texts with word vectors, or reject it."""
    if not isinstance(model, Classifier) or not model.task.has_classes:
        raise UnsupportedError(
            f"Expected a classifier with classes for class inversion, got {type(model).__name__}. Use extraction for a "
            "language model."
        )
    if not hasattr(model.encoder, "get_input_embeddings"):
        raise UnsupportedError(
            f"Expected an encoder of transformers for class inversion, got {type(model.encoder).__name__}. It needs "
            "word vectors."
        )
    return model


def whole_words(tokenizer: Any) -> npt.NDArray[np.int64]:
    """Return the tokens of a vocabulary that are whole words of at least three letters."""
    result = []
    marked = any(token[:1] in {"Ġ", "▁"} for token in tokenizer.get_vocab())
    for token, number in tokenizer.get_vocab().items():
        bare = token.lstrip("Ġ▁")  # a mark of the space before a word; where others have it, a piece has none
        if bare.isalpha() and len(bare) >= _SHORTEST_WORD and (bare != token or not marked):
            result.append(int(number))
    if not result:
        raise UnsupportedError(
            "Expected a tokenizer with whole words for class inversion, got none. Use another model."
        )
    return np.array(sorted(result), dtype=np.int64)


def _framed(model: Classifier, tokens: Tensor) -> Tensor:
    """Return rows of tokens between the tokens that open and close every text of the model."""
    opening, closing = model.frame
    parts = [tokens]
    if opening is not None:
        parts.insert(0, torch.full_like(tokens[:, :1], opening))
    if closing is not None:
        parts.append(torch.full_like(tokens[:, :1], closing))
    return torch.cat(parts, dim=1)


def _answers(model: Classifier, inputs: dict[str, Tensor]) -> Tensor:
    """Return log-probabilities of the classes; several views of a vector are averaged."""
    vectors = model.represent(inputs)
    if model.query is not None:
        vectors = model.query(vectors)
    logs = model.decide(vectors).float().log_softmax(dim=-1)
    return logs.logsumexp(dim=0) - float(np.log(len(logs))) if logs.ndim > 2 else logs


@torch.inference_mode()
def _scores(model: Classifier, tokens: Tensor) -> Tensor:
    ids = _framed(model, tokens)
    return _answers(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def _gradient(model: Classifier, tokens: Tensor, number: int) -> Tensor:
    """Return the gradient of the log-probability of a class with respect to each word's vector, (words, width)."""
    ids = _framed(model, tokens[None])
    with torch.no_grad():
        vectors = model.encoder.get_input_embeddings()(ids)  # type: ignore[operator]
    vectors = vectors.detach().requires_grad_(True)
    with torch.enable_grad():
        score = _answers(model, {"inputs_embeds": vectors, "attention_mask": torch.ones_like(ids)})[0, number]
        gradient: Tensor = torch.autograd.grad(score, vectors)[0]
    first = int(model.frame[0] is not None)
    return gradient[0, first : first + tokens.shape[-1]]
