from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from discreet.attacks import base
from discreet.attacks.base import TimeLimit
from discreet.attacks.encoder_layers import dissect
from discreet.attacks.matching.engine import SearchingAttack, prior_of, set_up
from discreet.attacks.matching.lamp_tag_dlg import Dlg, Lamp, Tag
from discreet.attacks.matching.lbfgs import minimise
from discreet.attacks.matching.objective import MeanCosine
from discreet.attacks.matching.polish import Polish, reorderings
from discreet.attacks.matching.problems import Vocabulary
from discreet.attacks.matching.word_draws import WordDraws
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))
QUICK = Lamp(steps=30, rate=0.1, starts=4, every=15, proposals=8, polish=4, orders=16)
PUBLIC = ("the knee was dull and the heart was slow", "a sharp pain", "very slow walk", "the walk was dull")


def found(model: Classifier, attack: object, seen: GradientRelease, **known: object) -> tuple[str, ...]:
    return attack.run(seen, Knowledge(model=model, auxiliary=PUBLIC, **known), Rng(0)).texts  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_lamp_reads_sentences_attacked_together(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    releases = [open_release(model, BATCH.take([i])) for i in range(3)]
    guesses = QUICK.run_many(releases, Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert [guess.texts[0] for guess in guesses].count("a knee") == 1
    exact = sum(guess.texts[0] == text for guess, text in zip(guesses, BATCH.texts, strict=True))
    assert exact >= 2
    assert all(guess.details["steps"] == 30 for guess in guesses)


def test_the_same_source_gives_the_same_guess(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([0]))
    for attack in (replace(QUICK, steps=5), Tag(steps=5), Dlg(steps=5)):
        first, second = (attack.run(seen, Knowledge(model=model), Rng(3)) for _ in range(2))
        assert first.texts == second.texts and first.details["loss"] == second.details["loss"]


def test_the_model_is_left_as_it_was(tiny_model: Build) -> None:
    model = tiny_model("bert").train()
    before = {n: (p.clone(), p.requires_grad) for n, p in model.named_parameters()}
    found(model, replace(QUICK, steps=3), open_release(model, BATCH.take([0])))
    assert model.training and all(p.requires_grad == before[n][1] for n, p in model.named_parameters())
    assert all(torch.equal(p, before[n][0]) and p.grad is None for n, p in model.named_parameters())


@pytest.mark.parametrize("attack", [Tag(steps=40), Dlg(steps=40), Dlg(steps=40, optimiser="l-bfgs", rate=1.0)])
def test_tag_and_dlg_come_closer_with_every_step(tiny_model: Build, attack: Tag | Dlg) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([1]))
    short = replace(attack, steps=2).run(seen, Knowledge(model=model), Rng(0))
    guess = attack.run(seen, Knowledge(model=model), Rng(0))
    assert guess.details["loss"] < 0.7 * short.details["loss"]
    assert len(guess.details["tokens"][0]) == 4


def test_labels_are_read_off_the_bias_or_learned(tiny_model: Build) -> None:
    model = tiny_model("bert")
    blind = replace(open_release(model, BATCH.take([1])), labels=None, lengths=None)
    assert found(model, QUICK, blind) == ("a knee",)
    several = replace(open_release(model, BATCH), labels=None)
    guess = Dlg(steps=4).run(several, Knowledge(model=model), Rng(0))
    assert len(guess.texts) == 3
    learned = Dlg(steps=40, learn_labels=True).run(open_release(model, BATCH.take([1])), Knowledge(model=model), Rng(0))
    fixed = Dlg(steps=1).run(open_release(model, BATCH.take([1])), Knowledge(model=model), Rng(0))
    assert learned.details["loss"] < fixed.details["loss"]


def test_several_sentences_in_one_gradient(tiny_model: Build) -> None:
    model = tiny_model("bert")
    pair = BATCH.take([0, 1])
    guess = QUICK.run(open_release(model, pair), Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert [len(row) for row in guess.details["tokens"]] == [6, 4]
    assert set(guess.texts) & set(pair.texts)


@pytest.mark.parametrize("size", [4, 8])
def test_larger_batches_are_searched_together(tiny_model: Build, size: int) -> None:
    model = tiny_model("bert")
    batch = BATCH.take([i % 3 for i in range(size)])
    attack = replace(QUICK, steps=3, polish=1, near=1, cheap=1)
    guess = attack.run(open_release(model, batch), Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert [len(row) for row in guess.details["tokens"]] == [(6, 4, 8)[i % 3] for i in range(size)]
    assert len(guess.texts) == size and guess.details["loss"] < 1.5


def test_noise_hides_and_random_gradients_tell_nothing(tiny_model: Build) -> None:
    model = tiny_model("bert")
    one = BATCH.take([0])
    for protect in (DPSGD(3.0, clip_norm=1.0), DirDPSGD.for_model(model, 5.0)):
        seen = protected_release(model, one, protect, Rng(0), delta=1e-5)
        assert found(model, replace(QUICK, steps=10), seen, defence=protect) != one.texts
    source = torch.Generator().manual_seed(0)
    drawn = {n: torch.randn(p.shape, generator=source) for n, p in model.named_parameters()}
    release = GradientRelease(drawn, 1, lengths=(6,), labels=(0,))
    assert found(model, replace(QUICK, steps=10), release) != one.texts


def test_a_little_noise_does_not_hide(tiny_model: Build) -> None:
    model, protect = tiny_model("bert"), DPSGD(0.003, clip_norm=1.0)
    seen = protected_release(model, BATCH.take([1]), protect, Rng(0), delta=1e-5)
    assert found(model, QUICK, seen, defence=protect) == ("a knee",)
    assert found(model, QUICK, seen) == ("a knee",)


@pytest.mark.usefixtures("slow_clock")
def test_a_time_limit_ends_with_the_best_so_far_and_says_so(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([0]))
    guess = replace(QUICK, steps=10**6, seconds=1.0).run(seen, Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert guess.texts and 0 < guess.details["steps"] < 100
    assert guess.details["stopped_by_time_limit"]
    spent = replace(QUICK, steps=10**6, seconds=1e-6).run(seen, Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert spent.texts and spent.details["steps"] == 0  # the starts alone took longer
    assert spent.details["stopped_by_time_limit"]


SHORT = replace(QUICK, steps=12, every=5, cycles=2)


@pytest.mark.parametrize("attack", [SHORT, Tag(steps=9), Dlg(steps=9), Dlg(steps=9, optimiser="l-bfgs", rate=1.0)])
def test_a_time_limit_that_is_not_reached_changes_nothing(tiny_model: Build, attack: Lamp | Tag | Dlg) -> None:
    """A search counts its steps: the clock decides nothing, however unevenly time passes."""
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([0]))
    free = attack.run(seen, Knowledge(model=model), Rng(3))
    limited = replace(attack, seconds=1e6).run(seen, Knowledge(model=model), Rng(3))
    assert free.texts == limited.texts and free.details["loss"] == limited.details["loss"]
    assert free.details["steps"] == limited.details["steps"]
    assert not free.details["stopped_by_time_limit"] and not limited.details["stopped_by_time_limit"]


def test_a_loop_counts_steps_and_is_shortened_only_where_it_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limit = base.TimeLimit(10.0)
    for step, at in ((0, 0.0), (10, 0.5), (20, 2.9), (50, 5.9)):  # ahead of the time, or a little behind it
        now[0] = at
        assert limit.done(step, 100) == step / 100 and not limit.reached
    now[0] = 8.0
    assert limit.done(60, 100) == 0.8 and limit.reached  # no longer fits
    now[0] = 10.0
    assert limit.done(70, 100) == 1.0 and limit.over()


def test_unusable_settings_and_releases_are_refused(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([0]))
    for bad in (
        {"steps": 0},
        {"rate": 0.0},
        {"seconds": -1.0},
        {"prior": -1.0},
        {"proposals": 1},
        {"polish": -1},
        {"likely": -1},
        {"places": 2.0},
    ):
        with pytest.raises(SettingError):
            Lamp(**bad)
    with pytest.raises(SettingError, match="optimiser"):
        Dlg(optimiser="sgd")
    head = {n: g for n, g in seen.gradients.items() if n.startswith("head")}
    for attack in (Lamp(), Tag(), Dlg()):
        with pytest.raises(UnsupportedError, match="encoder's layers"):
            attack.run(replace(seen, gradients=head), Knowledge(model=model), Rng(0))
        with pytest.raises(UnsupportedError, match="Classifier"):
            attack.run(seen, Knowledge(), Rng(0))


def test_moves_are_orders_of_the_free_tokens() -> None:
    orders = reorderings(torch.tensor([5, 3, 0]), 8, 1, 400, torch.Generator().manual_seed(0))
    assert bool((orders.sort(-1).values == torch.arange(8)).all())
    assert bool((orders[..., 0] == 0).all()) and bool((orders[1, :, 4:] == torch.arange(4, 8)).all())
    assert bool((orders[2] == torch.arange(8)).all())
    assert len({tuple(row) for row in orders[0].tolist()}) > 20


def test_l_bfgs_finds_minima_of_its_own_for_every_problem() -> None:
    # Two valleys of Rosenbrock's, one of them scaled: coupled steps would fail at one of them.
    def slopes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        scale = torch.tensor([1.0, 100.0])
        losses = scale * ((1 - x[..., 0]).square() + 100 * (x[..., 1] - x[..., 0].square()).square())
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    start = torch.tensor([[-1.2, 1.0], [0.5, 2.0]])
    end = minimise(slopes, start, rate=1.0, steps=299, backtrack=True)
    assert float((end.points - 1).abs().max()) < 1e-2


def test_a_prior_may_be_given(tiny_model: Build) -> None:
    model = tiny_model("bert")
    prior = NGram.fit(PUBLIC, model.tokenizer)
    guess = QUICK.run(open_release(model, BATCH.take([1])), Knowledge(model=model, extra={"prior": prior}), Rng(0))
    assert guess.texts == ("a knee",)


def test_a_prior_of_another_vocabulary_or_none_at_all_is_refused(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, BATCH.take([1]))
    for prior, said in (
        (NGram.from_ids([[1, 2, 3]], 9), "prior.vocabulary to be .*, got 9"),
        (list(PUBLIC), "prior to be .*, got 'list'"),
    ):
        with pytest.raises(SettingError, match=said):
            QUICK.run(seen, Knowledge(model=model, extra={"prior": prior}), Rng(0))
    wide = NGram.fit(PUBLIC, model.tokenizer, vocabulary=len(dissect(model).embeddings.words))
    assert prior_of(Knowledge(model=model, extra={"prior": wide}), model) is not None


def test_a_prior_counts_every_token_of_a_batch_alike(tiny_model: Build) -> None:
    model = tiny_model("bert")
    _, objective = set_up([open_release(model, BATCH)], Knowledge(model=model), MeanCosine(), "")
    prior = NGram.fit(PUBLIC, model.tokenizer)
    rows = model.tokenizer(list(BATCH.texts), padding=True, return_tensors="pt")
    logs = (prior.logs(rows["input_ids"]) * rows["attention_mask"]).sum()
    found = objective.surprise(rows["input_ids"][None, None], prior)
    torch.testing.assert_close(found, -logs.view(1, 1) / objective.evidence[:, None])


def test_the_polish_gives_each_text_its_own_labels(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = replace(open_release(model, BATCH.take([0, 1])), labels=None)
    _, objective = set_up([seen], Knowledge(model=model), MeanCosine(), "")
    ids = model.tokenizer(list(BATCH.texts[:2]), padding=True, return_tensors="pt")["input_ids"]
    wrong = ids.flip(-1).where(objective.problems.free[0], ids)
    labels = torch.nn.functional.one_hot(torch.tensor([[[1, 1], [0, 1]]]), 2).float()  # right are 0 and 1
    tokens = torch.stack([wrong, ids])[None]

    vocabulary, vectors = Vocabulary.of(model, objective.imitation.words), objective.imitation.words[tokens]
    found, scores = Polish(rounds=1).run(objective, vocabulary, tokens, vectors, labels, None, TimeLimit(), Rng(0))
    assert torch.equal(found[0, 0], ids) and float(scores) < 1e-3


@pytest.mark.parametrize("attack", [QUICK, Tag(), Dlg(), WordDraws()])
def test_pairs_of_texts_are_refused(tiny_model: Build, attack: SearchingAttack) -> None:
    pairs = Corpus("pairs", ("the heart", "a knee"), second=("was dull", "pain"), labels=(0, 1))
    model = tiny_model("bert")
    with pytest.raises(UnsupportedError, match=rf"single texts for {attack.label}, got pairs"):
        attack.run(open_release(model, pairs), Knowledge(model=model), Rng(0))
