import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from discreet.attacks.base import Need
from discreet.attacks.extraction.discoverable import (
    DiscoverableExtraction,
    Prompt,
    Sampling,
    causal,
    extractable_shares,
    extracted_within,
    log_trials,
    prompts_of,
    sample,
    suffix_log_probabilities,
)
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, ModelRelease
from discreet.metrics.intervals import clopper_pearson
from discreet.models.encoder import quiet
from discreet.models.language_model import LanguageModel


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[[str], Path]) -> LanguageModel:
    """A tiny causal model whose tokens are far from equally likely."""
    folder = tiny_encoder("gpt2")
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(1)
        network = AutoModelForCausalLM.from_pretrained(folder)
        for weight in network.parameters():
            if weight.dim() == 2:
                weight.data.mul_(8)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    return LanguageModel.from_transformers(network, tokenizer).eval()


def test_the_probabilities_of_all_continuations_of_a_small_vocabulary_add_up_to_one() -> None:
    """The slow way: every sequence of two tokens, with a table of next-token scores in place of a model."""
    scores = torch.from_numpy(Rng(0).numpy().standard_normal((4, 4)) * 3)
    for sampling in (Sampling(1.0, None), Sampling(0.7, 2), Sampling(2.0, 3), Sampling(0.0, None)):
        logs = sampling.log_probabilities(scores)
        total = sum(math.exp(logs[0, a] + logs[a, b]) for a, b in itertools.product(range(4), repeat=2))
        assert total == pytest.approx(1.0)
        if sampling.top_k is not None:
            assert ((logs > -math.inf).sum(dim=-1) == sampling.top_k).all()


def test_tokens_that_tie_with_the_last_kept_one_are_kept() -> None:
    logs = Sampling(1.0, 2).log_probabilities(torch.tensor([2.0, 1.0, 1.0, 0.0]))
    assert torch.isfinite(logs).tolist() == [True, True, True, False]


@pytest.mark.parametrize("sampling", [Sampling(1.0, None), Sampling(0.8, 5), Sampling(0.0, None)])
def test_one_forward_pass_gives_what_token_by_token_gives(model: LanguageModel, sampling: Sampling) -> None:
    source = Rng(2).numpy()
    prompts = [
        Prompt(tuple(source.integers(5, 60, n).tolist()), tuple(source.integers(5, 60, m).tolist()))
        for n, m in ((3, 1), (5, 4), (1, 2), (7, 3))
    ]
    fast = suffix_log_probabilities(model, prompts, sampling)
    for prompt, value in zip(prompts, fast, strict=True):
        tokens, total = list(prompt.prefix), 0.0
        for token in prompt.suffix:
            with torch.no_grad():
                scores = model.network(torch.tensor([tokens])).logits[0, -1]
            total += float(sampling.log_probabilities(scores)[token])
            tokens.append(token)
        assert value == pytest.approx(total, rel=1e-4) or (value == total == -math.inf)


def test_sampling_finds_a_continuation_as_often_as_the_formula_says(model: LanguageModel) -> None:
    sampling, prefix = Sampling(1.0, 10), (7, 9, 11)
    rows = sample(model, prefix, 4000, 2, sampling, Rng(0))
    for suffix in {tuple(row) for row in rows[:12]}:
        if model.tokenizer.eos_token_id in suffix[:-1]:
            continue  # what follows the end token is padding, not sampled
        (log_q,) = suffix_log_probabilities(model, [Prompt(prefix, suffix)], sampling)
        hits = sum(tuple(row) == suffix for row in rows)
        low, high = clopper_pearson(hits, len(rows), confidence=0.9999)
        assert low <= math.exp(log_q) <= high


def test_greedy_sampling_is_certain(model: LanguageModel) -> None:
    (row,) = sample(model, (7, 9), 1, 3, Sampling(0.0, None), Rng(0))
    assert suffix_log_probabilities(model, [Prompt((7, 9), tuple(row))], Sampling(0.0, None)).tolist() == [0.0]
    assert sample(model, (7, 9), 3, 3, Sampling(0.0, None), Rng(1)) == [row] * 3


@given(st.floats(-30, -1e-6), st.floats(0.01, 0.99))
def test_the_number_of_samples_solves_its_equation(log_q: float, p: float) -> None:
    n = math.exp(log_trials(log_q, p))
    reached = -math.expm1(n * math.log1p(-math.exp(log_q)))
    assert reached == pytest.approx(p, rel=1e-6) or (n == 1 and reached >= p)


@given(st.floats(-5000, -20), st.floats(0.01, 0.99))
def test_the_number_of_samples_does_not_underflow(log_q: float, p: float) -> None:
    assert log_trials(log_q, p) == pytest.approx(math.log(-math.log1p(-p)) - log_q, rel=1e-6)


def test_certain_and_impossible_continuations() -> None:
    assert log_trials(0.0, 0.9) == 0.0 and log_trials(-math.inf, 0.1) == math.inf
    assert extracted_within(0.0, 1) == 1.0 and extracted_within(-math.inf, 10**6) == 0.0
    assert extracted_within(-1e-18, 1) == 1.0
    with pytest.raises(SettingError, match="log_probability"):
        log_trials(0.1, 0.5)
    with pytest.raises(SettingError, match="in \\(0, 1\\)"):
        log_trials(-1.0, 1.0)


@given(st.lists(st.one_of(st.floats(-40, 0), st.just(-math.inf)), min_size=1, max_size=9))
def test_more_samples_extract_more_and_a_higher_probability_less(logs: list[float]) -> None:
    shares = extractable_shares(logs)
    for row in shares.values():
        assert row == sorted(row)
    for low, high in itertools.pairwise(shares.values()):
        assert all(a >= b for a, b in zip(low, high, strict=True))
    exact = [np.mean([extracted_within(log, 10) >= 0.5 for log in logs])]
    assert shares[0.5][1] == pytest.approx(exact[0])


def test_texts_are_cut_after_the_start_token(model: LanguageModel) -> None:
    short, long = prompts_of(model, ["the pain", "the pain was very sharp and the child was calm"], 3, 4)
    assert short is None and long is not None
    assert long.prefix[0] == model.start and len(long.prefix) == 4 and len(long.suffix) == 4
    with pytest.raises(SettingError, match="The model reads"):
        prompts_of(model, ["the"], 100, 100)


def test_the_attack_returns_continuations_of_every_prompt(model: LanguageModel) -> None:
    attack = DiscoverableExtraction(samples=3, suffix=2)
    knows = Knowledge(extra={Need.PROMPTS.value: [(7, 9), (11, 12)]})
    first, second = (attack.run(ModelRelease(model), knows, Rng(5)) for _ in range(2))
    assert len(first.texts) == 6 and first.texts == second.texts
    with pytest.raises(UnsupportedError, match="prompts"):
        attack.run(ModelRelease(model), Knowledge(), Rng(0))


def test_tokens_of_another_vocabulary_and_other_models_are_rejected(model: LanguageModel) -> None:
    with pytest.raises(SettingError, match="tokenizer of another model"):
        suffix_log_probabilities(model, [Prompt((1,), (10**6,))], Sampling())
    with pytest.raises(UnsupportedError, match="A classifier continues no text"):
        causal(torch.nn.Linear(2, 2))
    with pytest.raises(SettingError, match="temperature"):
        Sampling(-1.0)
    with pytest.raises(SettingError, match="top_k"):
        Sampling(1.0, 0)
