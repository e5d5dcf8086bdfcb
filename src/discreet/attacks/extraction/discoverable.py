"""(n, p)-discoverable extraction: the probability that sampling a continuation n times yields the true one.

The probability that a model continues a prompt with one given sequence of tokens is the product of the probabilities of
its tokens, which one forward pass over prompt and continuation gives. A text is (n, p)-extractable if the continuation
appears at least once in n samples with probability p or more. Sampling itself would need many passes for every token.

Paper: Hayes, Swanberg, Chaudhari, Yona, Shumailov, Nasr, Choquette-Choo, Lee and Cooper 2024, Measuring memorization in
language models via probabilistic extraction (arXiv 2410.19482).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.base import ExtractionAttack, Need, Returns
from discreet.core.errors import UnsupportedError, invalid, non_negative, open_probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, ModelRelease
from discreet.models.base import evaluating
from discreet.models.encoder import quiet

if TYPE_CHECKING:
    from discreet.models.language_model import LanguageModel

Floats = npt.NDArray[np.float64]

PROBABILITIES = (0.1, 0.5, 0.9)
TRIALS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}  # each has a score for every token of the vocabulary
_SEQUENCES_AT_ONCE = {"cpu": 64, "cuda": 2048}


@dataclass(frozen=True)
class Sampling:
    """How continuations are sampled: temperature (0 takes the likeliest token), and the number of likeliest tokens."""

    temperature: float = 1.0
    top_k: int | None = 40

    def __post_init__(self) -> None:
        """Check the settings."""
        non_negative("temperature", self.temperature, "0 takes the likeliest token, 1 samples from the model.")
        if self.top_k is not None:
            whole("top_k", self.top_k, 1, "Tokens are sampled from this many likeliest ones; None is all.")

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Return the log-probability of every token from its scores, in float64; -inf for one that is never sampled.

        Tokens that tie with the last of the `top_k` are kept, as `generate` of transformers does; at temperature 0 the
        first of the likeliest tokens is certain.
        """
        scores = scores.double()
        if self.temperature == 0:
            best = scores.argmax(dim=-1, keepdim=True)
            return torch.full_like(scores, -math.inf).scatter_(-1, best, 0.0)
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < least, -math.inf)
        return scores.log_softmax(dim=-1)


@dataclass(frozen=True)
class Prompt:
    """A text cut in two: the tokens that the attacker has, and the private ones that follow."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


@dataclass(frozen=True)
class DiscoverableExtraction(ExtractionAttack):
    """Sample continuations of prompts: the first `prefix` tokens of a text, whose next `suffix` tokens are private.

    `extra["prompts"]` holds the prompts as tokens. `samples` continuations of each are sampled at `temperature` from
    the `top_k` likeliest tokens (0 for all). In the guess, `texts` are the continuations, `samples` for each prompt.

    Differs: the paper uses 50 tokens of each; the default here fits short notes. Its top-k of 40 is the default.
    """

    prefix: int = 25
    suffix: int = 25
    samples: int = 4
    temperature: float = 1.0
    top_k: int = 40

    name: ClassVar[str] = "extraction"
    returns: ClassVar[Returns] = Returns.TEXTS
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPTS})

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("prefix", "suffix", "samples"):
            whole(name, getattr(self, name), 1)
        whole("top_k", self.top_k, 0, "0 samples from all tokens.")
        non_negative("temperature", self.temperature, "0 takes the likeliest token, 1 samples from the model.")

    @property
    def sampling(self) -> Sampling:
        """How continuations are sampled."""
        return Sampling(self.temperature, self.top_k or None)

    def run(self, seen: ModelRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return sampled continuations of each prompt."""
        model = causal(seen.model)
        prompts: Sequence[Sequence[int]] = knows.extra.get(Need.PROMPTS.value) or ()
        if not prompts:
            raise UnsupportedError(
                "Expected prompts for extraction, got none. Pass Knowledge(extra={'prompts': [token ids, …]})."
            )
        texts: list[str] = []
        for number, prompt in enumerate(prompts):
            rows = sample(model, prompt, self.samples, self.suffix, self.sampling, rng.fork("prompt", number))
            texts += [str(model.tokenizer.decode(row, skip_special_tokens=True)) for row in rows]
        return Guess(texts=tuple(texts))


def causal(model: Any) -> LanguageModel:
    """Return a model as a causal language model, or reject it."""
    from discreet.models.language_model import LanguageModel

    if not isinstance(model, LanguageModel) or model.network is None:
        raise UnsupportedError(
            f"Expected a causal language model for extraction, got {type(model).__name__}. A classifier continues no "
            "text; measure the exposure of canaries or membership instead."
        )
    return model


def prompts_of(model: LanguageModel, texts: Sequence[str], prefix: int, suffix: int) -> list[Prompt | None]:
    """Return each text cut after `prefix` tokens and again after `suffix` more, or None if it is shorter.

    The token that starts a text is not counted; the model reads it before the prefix.
    """
    start = [] if model.start is None else [model.start]
    if prefix + suffix + len(start) > model.max_length:
        most = model.max_length - len(start)
        raise invalid("prefix", prefix, f"at most {most - suffix}", f"The model reads {most} tokens of a text.")
    cut: list[Prompt | None] = []
    for text in texts:
        ids = [int(token) for token in model.tokenizer(text, verbose=False)["input_ids"]]
        enough = len(ids) >= prefix + suffix
        cut.append(Prompt((*start, *ids[:prefix]), tuple(ids[prefix : prefix + suffix])) if enough else None)
    return cut


@torch.inference_mode()
def suffix_log_probabilities(model: LanguageModel, prompts: Sequence[Prompt], sampling: Sampling) -> Floats:
    """Return the log-probability of each suffix after its prefix, from one forward pass, in float64.

    It is -inf if a token of the suffix is not among those that are sampled from.
    """
    model = causal(model)
    _check_vocabulary(model, prompts)
    result = np.empty(len(prompts))
    lengths = np.array([len(prompt.prefix) + len(prompt.suffix) for prompt in prompts])
    order = np.argsort(-lengths, kind="stable")
    at_once, start = _TOKENS_AT_ONCE[model.device.type], 0
    with evaluating(model):
        while start < len(order):
            rows = order[start : start + max(1, at_once // int(lengths[order[start]]))].tolist()
            result[rows] = _log_probabilities(model, [prompts[row] for row in rows], sampling)
            start += len(rows)
    return result


def _log_probabilities(model: LanguageModel, prompts: Sequence[Prompt], sampling: Sampling) -> Floats:
    width = max(len(prompt.prefix) + len(prompt.suffix) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    real = torch.zeros(len(prompts), width, dtype=torch.int64)
    wanted = torch.zeros(len(prompts), width - 1, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens = [*prompt.prefix, *prompt.suffix]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        real[row, : len(tokens)] = 1
        wanted[row, len(prompt.prefix) - 1 : len(tokens) - 1] = True
    ids, real, wanted = (tensor.to(model.device) for tensor in (ids, real, wanted))
    states = model.states({"input_ids": ids, "attention_mask": real})[:, :-1]
    totals = torch.zeros(len(prompts), dtype=torch.float64, device=model.device)
    rows = torch.arange(len(prompts), device=model.device)[:, None].expand_as(wanted)[wanted]
    next_tokens = ids[:, 1:][wanted]
    for part, owner, token in zip(
        *(torch.split(tensor, _TOKENS_AT_ONCE[model.device.type]) for tensor in (states[wanted], rows, next_tokens)),
        strict=True,
    ):
        logs = sampling.log_probabilities(model.head(part)).gather(-1, token[:, None])[:, 0]
        totals.index_add_(0, owner, logs)
    return np.asarray(totals.clamp_max(0.0).cpu().numpy(), dtype=np.float64)


@torch.inference_mode()
def sample(
    model: LanguageModel, prefix: Sequence[int], count: int, length: int, sampling: Sampling, rng: Rng
) -> list[list[int]]:
    """Return `count` sampled continuations of a prefix, each of at most `length` tokens; an end token ends one.

    Guarantee: that of the model, unchanged; sampling is post-processing.
    """
    import copy

    model = causal(model)
    settings = copy.deepcopy(model.network.generation_config)
    greedy = sampling.temperature == 0
    settings.update(do_sample=False, temperature=None, top_p=None, top_k=None)  # not the defaults of its makers
    if not greedy:
        settings.update(do_sample=True, temperature=sampling.temperature, top_p=1.0, top_k=sampling.top_k or 0)
    settings.update(max_new_tokens=length, max_length=None)
    settings.update(pad_token_id=model.tokenizer.pad_token_id, eos_token_id=model.tokenizer.eos_token_id)
    given = torch.tensor([list(prefix)], device=model.device)
    rows: list[list[int]] = []
    devices = [model.device] if model.device.type == "cuda" else []
    with evaluating(model), torch.random.fork_rng(devices=devices), quiet():
        torch.manual_seed(rng.fork("sample").seed())
        while len(rows) < count:
            size = 1 if greedy else min(count - len(rows), _SEQUENCES_AT_ONCE[model.device.type])
            settings.update(num_return_sequences=size)
            made = model.network.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
            rows += [row[len(prefix) :] for row in made.tolist()] * (count if greedy else 1)
    return rows


def log_trials(log_probability: float, p: float) -> float:
    """Return ln of the number of samples after which a continuation has appeared with probability `p`, at least 0.

    It solves 1 - (1 - q)^n = p for n, with q = e^log_probability, and does not underflow for small q.

    >>> round(math.exp(log_trials(math.log(0.5), 0.75)), 6), round(log_trials(-1000.0, 0.5), 3)
    (2.0, 999.633)
    """
    open_probability("p", p)
    if math.isnan(log_probability) or log_probability > 0:
        raise invalid("log_probability", log_probability, "<= 0", "It is the logarithm of a probability.")
    if log_probability == -math.inf:
        return math.inf
    q = math.exp(log_probability)
    # ln(-ln(1 - q)); below 1e-8 the second-order term q / 2 is lost in rounding
    rate = log_probability if q < 1e-8 else math.inf if q >= 1 else math.log(-math.log1p(-q))
    return max(0.0, math.log(-math.log1p(-p)) - rate)


def extracted_within(log_probability: float, trials: int) -> float:
    """Return the probability that a continuation appears in this many samples.

    >>> extracted_within(math.log(0.5), 2), extracted_within(-1000.0, 10)
    (0.75, 0.0)
    """
    whole("trials", trials)
    q = math.exp(min(log_probability, 0.0))
    return 1.0 if q == 1 else -math.expm1(trials * math.log1p(-q))


def extractable_shares(
    log_probabilities: npt.ArrayLike,
    trials: Sequence[int] = TRIALS,
    probabilities: Sequence[float] = PROBABILITIES,
) -> dict[float, list[float]]:
    """Return, for each p, the share of texts that are (n, p)-extractable at each n.

    >>> extractable_shares([math.log(0.5), -50.0], trials=(1, 4), probabilities=(0.5, 0.9))
    {0.5: [0.5, 0.5], 0.9: [0.0, 0.5]}
    """
    values = np.asarray(log_probabilities, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise invalid("log_probabilities", values.shape, "a one-dimensional array of at least one number")
    limits = [math.log(whole("trials", n)) + 1e-12 for n in trials]  # rounding must not exclude an exact n
    return {
        p: [float(np.mean([log_trials(value, p) <= limit for value in values.tolist()])) for limit in limits]
        for p in probabilities
    }


def _check_vocabulary(model: LanguageModel, prompts: Sequence[Prompt]) -> None:
    """Reject prompts that another tokenizer made: tokens the model does not have."""
    size = int(model.network.get_output_embeddings().out_features)
    largest = max((max((*one.prefix, *one.suffix), default=0) for one in prompts), default=0)
    if largest >= size or any(not one.prefix or not one.suffix for one in prompts):
        raise invalid(
            "prompts",
            largest,
            f"token numbers below {size}, at least one before and after the cut",
            "They were made with the tokenizer of another model; make them with this model's own.",
        )
