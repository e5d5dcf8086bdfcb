from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discreet.core.errors import DataError, SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.classifier import Classifier
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide
from discreet.training.evaluate import evaluate, predict
from discreet.training.loop import train
from discreet.training.settings import TrainSettings

FAST = TrainSettings(epochs=20, learning_rate=5e-3, batch_size=32)


@pytest.fixture
def corpus(toy_csv: Path) -> Corpus:
    return load(toy_csv)


def build(corpus: Corpus, folder: Path, **changes: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), **changes)


def stop_after(count: int) -> Callable[[], bool]:
    def steps() -> Iterator[bool]:
        for _ in range(count - 1):
            yield False
        while True:
            yield True

    answers = steps()
    return lambda: next(answers)


def test_it_learns_through_masks_and_predicts_through_one_of_them(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(corpus, tiny_encoder("bert"), hidden=(64,), head="mlp")
    protect, secret = TextHide(masks=4, mix=2), Rng(9)
    done = train(model, corpus, FAST, rng=Rng(0), protect=protect, secret=secret)
    held_out = corpus.split("validation")
    assert done.guarantee is not None and not done.guarantee.exists
    assert all("loss" not in entry for entry in done.history)
    assert evaluate(model, held_out)["accuracy"] > 0.9
    assert evaluate(model, held_out, query=protect.averaged(model.width, secret))["accuracy"] > 0.9
    before = predict(model, held_out).values
    names = set(model.state_dict())
    protect.end(model)
    assert model.query is None and set(model.state_dict()) == names and not any("mask" in name for name in names)
    torch.testing.assert_close(predict(model, held_out).values, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("public", [False, True])
def test_stopped_and_resumed_it_ends_with_the_same_weights(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, public: bool
) -> None:
    settings = replace(FAST, epochs=3)
    protect = TextHide(masks=4, mix=2, public=public)
    other = Corpus("web", tuple(f"a slow film {i}" for i in range(20))) if public else None
    found = []
    for name, stops in (("whole", [10**6]), ("parts", [3, 4, 10**6])):
        folder = tmp_path / name
        folder.mkdir()
        for count in stops:
            model = build(corpus, tiny_encoder("bert"))
            train(
                model, corpus, settings, rng=Rng(0), protect=protect, public=other, secret=Rng(5), workspace=folder,
                should_stop=stop_after(count),
            )  # fmt: skip
        found.append({k: p.detach().clone() for k, p in model.named_parameters()})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_a_checkpoint_holds_no_mask(corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = build(corpus, tiny_encoder("bert"))
    protect, secret = TextHide(masks=4, mix=2), Rng(5)
    train(
        model, corpus, FAST, rng=Rng(0), protect=protect, secret=secret, workspace=tmp_path, should_stop=stop_after(2)
    )
    kept = load_file(tmp_path / "checkpoint.safetensors")
    known = set(dict(model.named_parameters()))
    assert {name.split(".", 1 if name.startswith("weight.") else 2)[-1] for name in kept} <= known
    masks = protect.pool(model.width, secret)
    flat = [t.flatten() for t in kept.values() if t.numel() == masks.shape[1]]
    assert not any(torch.equal(t, mask) for t in flat for mask in masks)


@pytest.mark.parametrize("part", ["all", "head"])
def test_pairs_and_scores_are_hidden_too(tiny_encoder: Callable[[str], Path], part: str) -> None:
    texts = tuple("the heart was bright" if i % 2 else "a knee" for i in range(64))
    scored = Corpus("toy", texts, scores=tuple(float(i % 2) for i in range(64)), second=texts)
    model = build(scored, tiny_encoder("bert"), train=part, head="mlp", hidden=(32,))
    asked = TrainSettings(epochs=30, learning_rate=5e-3)
    train(model, scored, asked, rng=Rng(0), protect=TextHide(masks=2, mix=2), secret=Rng(1))
    assert evaluate(model, scored)["pearson"] > 0.9


def test_what_does_not_go_is_refused(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    with pytest.raises(SettingError, match="mix=40 <= 32"):
        train(model, corpus, FAST, rng=Rng(0), protect=TextHide(mix=40))
    with pytest.raises(SettingError, match="accumulate=2 1 with texthide"):
        train(model, corpus, replace(FAST, accumulate=2), rng=Rng(0), protect=TextHide())
    with pytest.raises(SettingError, match="accumulate=2 1 with dp-sgd"):
        train(model, corpus, replace(FAST, accumulate=2), rng=Rng(0), protect=DPSGD(1.0))
    with pytest.raises(DataError, match="Expected a public corpus"):
        train(model, corpus, FAST, rng=Rng(0), protect=TextHide(public=True))
    pairs = Corpus("web", ("a", "b"), second=("c", "d"))
    with pytest.raises(DataError, match="Expected single texts in the public corpus 'web', found pairs"):
        train(model, corpus, FAST, rng=Rng(0), protect=TextHide(public=True), public=pairs)
    with pytest.raises(UnsupportedError, match="Expected one protection, found 2"):
        train(model, corpus, FAST, rng=Rng(0), protect=(TextHide(), DPSGD(1.0)))  # type: ignore[arg-type]
