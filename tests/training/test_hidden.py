from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.planned import train

from discreet.accounting.events import NoGuaranteeDpEvent
from discreet.core.errors import DataError, SettingError, UnsupportedError
from discreet.core.guarantee import Caveat
from discreet.core.randomness import Rng
from discreet.data.batches import Batch
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson, Sampler, Shuffled
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.base import Rows
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide
from discreet.releases.hidden import draw_hidden
from discreet.training.evaluation import evaluate, predict
from discreet.training.hidden import HiddenStep

StopAfter = Callable[[int], Callable[[], bool]]
FAST = TrainSettings(epochs=20, learning_rate=5e-3, batch_size=32)


def build(corpus: Corpus, folder: Path, **changes: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), **changes)


def test_it_learns_through_masks_and_predicts_through_one_of_them(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(corpus, tiny_encoder("bert"), hidden=(64,), head="mlp")
    protect, secret = TextHide(masks=4, mix=2), Rng(9)
    done = train(model, corpus, FAST, seed=0, protect=protect, secret=secret)
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
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, public: bool, stop_after: StopAfter
) -> None:
    settings = replace(FAST, epochs=3)
    protect = TextHide(masks=4, mix=2, public="given" if public else None)
    other = Corpus("web", tuple(f"a slow film {i}" for i in range(20))) if public else None
    found = []
    for name, stops in (("whole", [10**6]), ("parts", [3, 4, 10**6])):
        folder = tmp_path / name
        folder.mkdir()
        for count in stops:
            model = build(corpus, tiny_encoder("bert"))
            train(
                model, corpus, settings, seed=0, protect=protect, public=other, secret=Rng(5), workspace=folder,
                should_stop=stop_after(count),
            )  # fmt: skip
        found.append({k: p.detach().clone() for k, p in model.named_parameters()})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_a_checkpoint_holds_no_mask(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, stop_after: StopAfter
) -> None:
    from safetensors.torch import load_file

    model = build(corpus, tiny_encoder("bert"))
    protect, secret = TextHide(masks=4, mix=2), Rng(5)
    train(model, corpus, FAST, seed=0, protect=protect, secret=secret, workspace=tmp_path, should_stop=stop_after(2))
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
    train(model, scored, asked, seed=0, protect=TextHide(masks=2, mix=2), secret=Rng(1))
    assert evaluate(model, scored)["pearson"] > 0.9


def test_what_does_not_go_is_refused(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    with pytest.raises(SettingError, match="mix to be <= 32.*, got 40"):
        train(model, corpus, FAST, seed=0, protect=TextHide(mix=40))
    with pytest.raises(SettingError, match="accumulate to be 1 with texthide.*, got 2"):
        train(model, corpus, replace(FAST, accumulate=2), seed=0, protect=TextHide())
    with pytest.raises(SettingError, match="accumulate to be 1 with dp-sgd.*, got 2"):
        train(model, corpus, replace(FAST, accumulate=2), seed=0, protect=DPSGD(1.0))
    with pytest.raises(DataError, match="Expected a public corpus"):
        train(model, corpus, FAST, seed=0, protect=TextHide(public="given"))
    pairs = Corpus("web", ("a", "b"), second=("c", "d"))
    with pytest.raises(DataError, match="Expected single texts in the public corpus 'web', got pairs"):
        train(model, corpus, FAST, seed=0, protect=TextHide(public="given"), public=pairs)
    with pytest.raises(UnsupportedError, match="Expected one protection, got 2"):
        train(model, corpus, FAST, seed=0, protect=(TextHide(), DPSGD(1.0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("protect", [TextHide(masks=4, mix=2), InstanceEncoding(8.0, 1e-5, stored=False)])
def test_what_has_a_price_says_so_before_it_is_at_work(protect: TextHide | InstanceEncoding) -> None:
    event, _ = protect.live(10, 8, 2, Rng(0), torch.device("cpu")).cost(0, 0)
    assert protect.priced is not isinstance(event, NoGuaranteeDpEvent)


def test_a_fixed_draw_comes_in_an_order_that_says_nothing() -> None:
    """In increasing order the place of a vector in its batch would tell whose it is."""
    drawn = [draw_hidden(FixedSize(5), step, 20, Rng(3)).tolist() for step in range(400)]
    assert all(len(set(rows)) == 5 for rows in drawn)
    for row in (0, 19):  # first or last whenever they are drawn, were it sorted
        seen = [rows.index(row) for rows in drawn if row in rows]
        assert len(seen) > 60 and min(seen.count(place) for place in range(5)) > len(seen) / 12


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSize(8), Shuffled(8)])
def test_a_price_for_one_draw_is_not_charged_for_another(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], sampler: Sampler
) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    protect = InstanceEncoding(8.0, 1e-5, stored=False)
    with pytest.raises(SettingError, match="as counted"):
        train(model, corpus, FAST, seed=0, protect=protect, sampler=sampler)


def test_a_price_for_one_row_is_not_charged_for_a_person_of_several(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    owned = replace(corpus, units=tuple(str(i // 2) for i in range(len(corpus))))
    model = build(owned, tiny_encoder("bert"), train="head")
    with pytest.raises(SettingError, match="of one row each for a live dp-ie"):
        train(model, owned, FAST, seed=0, protect=InstanceEncoding(8.0, 1e-5, stored=False))
    train(model, owned, replace(FAST, epochs=1), seed=0, protect=TextHide(masks=2, mix=2))  # guarantees nothing


@pytest.mark.parametrize("protect", [InstanceEncoding(8.0, 1e-5, stored=False), DPSGD(1.0)])
def test_two_trainings_with_one_secret_draw_noise_of_their_own(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, protect: object
) -> None:
    """The same noise on two releases cancels out in their difference, though the ledger holds both."""
    seen: list[torch.Tensor] = []
    release, batch = DPSGD.release, HiddenStep.batch

    def watched_release(self: DPSGD, sums: dict[str, torch.Tensor], rng: Rng) -> dict[str, torch.Tensor]:
        seen.append(torch.from_numpy(rng.fork("look").uniform(4)))
        return release(self, sums, rng)

    def watched_batch(self: HiddenStep, drawn: Rows, step: int) -> Batch:
        found = batch(self, drawn, step)
        seen.append(found.inputs["drawn.noise"])
        return found

    monkeypatch.setattr(DPSGD, "release", watched_release)
    monkeypatch.setattr(HiddenStep, "batch", watched_batch)
    secret = Rng.secret()
    for rate in (5e-3, 5e-3, 4e-3):
        model = build(corpus, tiny_encoder("bert"), train="head")
        settings = replace(FAST, epochs=0.1, learning_rate=rate)
        train(model, corpus, settings, seed=0, protect=protect, secret=secret)  # type: ignore[arg-type]
    assert len(seen) == 3
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])


def test_a_stopped_run_with_a_secret_of_its_own_goes_on_with_the_same_noise(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, stop_after: StopAfter
) -> None:
    from discreet.accounting.ledger import Ledger

    settings, protect = replace(FAST, epochs=2), InstanceEncoding(8.0, 1e-5, stored=False, epochs=2)
    key = bytes(range(32))
    found = []
    for name, stops in (("whole", [10**6]), ("parts", [2, 3, 10**6])):
        folder = tmp_path / name
        folder.mkdir()
        for count in stops:
            model = build(corpus, tiny_encoder("bert"), train="head")
            done = train(
                model, corpus, settings, seed=0, protect=protect, secret=Rng.secret(key), workspace=folder,
                should_stop=stop_after(count),
            )  # fmt: skip
        assert done.guarantee is not None and done.guarantee.certified
        assert Ledger.read(folder / "ledger.jsonl").spends == 2  # one an epoch, however often it was stopped
        found.append({k: p.detach().clone() for k, p in model.named_parameters()})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_an_encoder_trained_along_makes_a_guarantee_of_vectors_an_estimate(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    protect = InstanceEncoding(8.0, 1e-5, stored=False)
    for part, proven in (("head", True), ("all", False)):
        model = build(corpus, tiny_encoder("bert"), train=part)
        done = train(model, corpus, TrainSettings(epochs=1), seed=0, protect=protect, secret=Rng.secret())
        assert done.guarantee is not None and done.guarantee.certified is proven
        assert (Caveat.TRAINED_ENCODER in done.guarantee.caveats) is not proven
