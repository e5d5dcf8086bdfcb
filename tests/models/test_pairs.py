"""Pairs of texts that are read separately."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from discreet.clipping.tape import Tape
from discreet.core.errors import DataError, ModelError, SettingError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.models.build import encode
from discreet.models.classifier import Classifier
from discreet.models.pairs import PAIR_WIDTH, SLOPE, THRESHOLD, separate
from discreet.models.settings import ModelSettings
from discreet.training.plan import TrainingPlan

FIRST = ("the plot was slow", "a film of 12 minutes", "nobody laughed at all")
SECOND = ("the plot was slow", "two good jokes in a film of 15", "nobody")


def pairs(scores: tuple[float, ...] | None = None) -> Corpus:
    labels = None if scores else (1, 0, 0)
    return Corpus("pairs", FIRST, second=SECOND, labels=labels, scores=scores)


def built(corpus: Corpus, encoder: Path, **settings: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(0), encoder=str(encoder), pairs="separate", **settings).eval()  # type: ignore[arg-type]


def states_of(model: Classifier, text: str) -> tuple[list[int], torch.Tensor]:
    """The tokens and last states of one text, read by itself."""
    inputs = model.tokenizer([text], return_tensors="pt")
    return inputs["input_ids"][0].tolist(), model.states(dict(inputs))[0].detach()


def slow(model: Classifier, one: str, two: str) -> dict[int, float]:
    """Some of the features of a pair, by number, computed one token at a time."""
    (ids, states), (others, answers) = states_of(model, one), states_of(model, two)
    best = [max(float(F.cosine_similarity(a, b, dim=0)) for b in answers[1:-1]) for a in states[1:-1]]
    mine, theirs = ids[1:-1], others[1:-1]
    bigrams = set(pairwise(theirs))
    digits = [t for t in mine if any(c.isdigit() for c in model.tokenizer.convert_ids_to_tokens(t))]
    short, long = sorted((len(mine), len(theirs)))
    return {
        0: (float(F.cosine_similarity(states.mean(0), answers.mean(0), dim=0)) - 0.7) / 0.3,
        3: (sum(best) / len(best) - 0.7) / 0.3,
        5: (min(best) - 0.7) / 0.3,
        13: (sum(t in theirs for t in mine) / len(mine) - 0.5) / 0.3,
        15: (sum(pair in bigrams for pair in pairwise(mine)) / max(1, len(mine) - 1) - 0.5) / 0.3,
        17: (short / long - 0.8) / 0.2,
        19: (short + long) / 80 - 0.6,
        22: min(5, sum(t not in theirs for t in digits)) / 2 - 0.5,
    }


def test_features_are_those_of_two_texts_that_are_read_alone(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"))
    found = model.represent(tokens_for(model, pairs()).batch(np.arange(3)).inputs).detach()
    assert found.shape == (3, PAIR_WIDTH) == (3, model.width)
    for row, texts in enumerate(zip(FIRST, SECOND, strict=True)):
        for number, value in slow(model, *texts).items():
            assert found[row, number].item() == pytest.approx(max(-4.0, min(4.0, value)), abs=1e-4), (row, number)


def test_a_pair_has_the_same_features_beside_any_other(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"))
    tokens = tokens_for(model, pairs())
    together = model.represent(tokens.batch(np.arange(3)).inputs)
    for row in range(3):
        alone = model.represent(tokens.part(np.array([row]), 40).inputs)
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", ["linear", "absolute"])
def test_the_untrained_head_predicts_from_the_cosine(tiny_encoder: Callable[[str], Path], head: str) -> None:
    model = built(pairs(), tiny_encoder("bert"), head=head)
    batch = tokens_for(model, pairs()).batch(np.arange(3))
    cosine = 0.7 + 0.3 * (model.represent(batch.inputs)[:, 0] - model.shift)
    odds = model(batch.inputs).diff(dim=1)[:, 0]
    torch.testing.assert_close(odds, SLOPE * (cosine - THRESHOLD), atol=1e-4, rtol=1e-4)
    scored = built(pairs((5.0, 1.0, 0.0)), tiny_encoder("bert"), score_range=(1.0, 5.0), head=head)
    torch.testing.assert_close(scored(batch.inputs)[:, 0], 1 + 4 * cosine, atol=1e-4, rtol=1e-4)


def test_a_mask_of_signs_changes_nothing_for_a_head_on_absolute_values(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"), head="absolute")
    vectors = model.represent(tokens_for(model, pairs()).batch(np.arange(3)).inputs)
    assert float(vectors.detach().min()) >= 0
    signs = torch.tensor([1.0, -1.0]).repeat(PAIR_WIDTH)[:PAIR_WIDTH]
    torch.testing.assert_close(model.decide(vectors * signs), model.decide(vectors))


def test_gradients_of_two_readings_are_clipped_as_one(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"), train="all")
    batch = tokens_for(model, pairs()).batch(np.arange(3))
    tape = Tape(model)
    with tape:
        losses = model.losses(batch.inputs, batch.targets)
    norms = tape.backward(losses).norms()
    for row in range(3):
        model.zero_grad()
        one = {name: value[row : row + 1] for name, value in batch.inputs.items()}
        model.losses(one, batch.targets[row : row + 1]).sum().backward()
        squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
        assert norms[row].item() == pytest.approx(torch.stack(squares).sum().sqrt().item(), rel=1e-3)


def test_single_texts_are_rejected_by_a_model_of_pairs(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"))
    single = Corpus("single", ("a", "b", "a b", "b a"), labels=(0, 1, 0, 1))
    with pytest.raises(DataError, match="Expected pairs of texts"):
        TrainingPlan.make(model, single)


def test_tokens_without_types_are_rejected() -> None:
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(ModelError, match="token types"):
        separate({"input_ids": ids, "attention_mask": ids}, 101)
    with pytest.raises(SettingError, match="pairs"):
        ModelSettings(pairs="both")


def test_vectors_in_the_cache_are_those_of_a_head_of_the_same_kind(
    tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    for head in ("linear", "absolute"):
        model = built(pairs(), tiny_encoder("bert"), head=head, train="head")
        own = encode(model, pairs()).vectors
        assert torch.equal(encode(model, pairs(), tmp_path).vectors, own)
    assert len(list(tmp_path.iterdir())) == 2
