"""Membership attacks on trained models: units on one side, the certificate beside the figure, bad input rejected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.attacks.base import Need
from discreet.attacks.membership.likelihood import Lira
from discreet.attacks.membership.signals import Outputs, References, Signals, TokenScores
from discreet.catalog import attack_of
from discreet.core.errors import DataError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, ModelRelease
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns, TextSource
from discreet.experiment import AttackRequest, Scene, attack_once
from discreet.experiment.attack import membership, signals
from discreet.experiment.attack.membership import observe, select
from discreet.experiment.attack.scene import Target
from discreet.experiment.attack.signals import (
    ReferenceText,
    check_same_tokens,
    outputs_of,
    random_halves,
    reference_outputs,
    token_scores,
)
from discreet.models.base import TextModel
from discreet.models.build import encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import RunChoices
from discreet.training.loop import Job, start_from_public, train
from discreet.training.plan import TrainingPlan, public_corpus

WORDS = ("heart", "knee", "lung", "hand", "scan", "dose", "cough", "fever", "nurse", "doctor", "pain", "rest")
TEXTS = tuple(f"the {a} and the {b} of {c}" for a in WORDS[:6] for b in WORDS[6:] for c in ("two", "one", "ten"))
LABELS = tuple(int(value) for value in (Rng(5).uniform(len(TEXTS)) < 0.5))
LOOP = TrainSettings(epochs=30, batch_size=16, learning_rate=0.1, weight_decay=0.0)


def corpus_of(units: int = 0) -> Corpus:
    half = len(TEXTS) // 2
    splits = ("train",) * half + ("validation",) * (len(TEXTS) - half)
    names = tuple(f"author {splits[row][0]}{row % units}" for row in range(len(TEXTS))) if units else None
    return Corpus(
        "toy", TEXTS, labels=LABELS, label_names=("no", "yes"), splits=splits, units=names,
        unit_name="author" if units else "row",
    )  # fmt: skip


def scene_of(corpus: Corpus, folder: str, protect: Any = None, train_part: str = "head") -> Scene:
    settings = ModelSettings(encoder=folder, train=train_part, dropout=0.0)
    model = Classifier.build(corpus, settings, rng=Rng(0).fork("model"))
    choices = RunChoices(TextSource("toy"), settings, LOOP, protect, 0)
    plan = TrainingPlan.make(model, corpus, protect=protect, training=LOOP, noise_seed=0)
    target = Target(corpus, choices)
    if protect is None:
        train(model, corpus, plan)
    else:
        with plan.open_ledger() as ledger:
            done = train(model, corpus, plan, ledger=ledger, secret=plan.secret())
            target = replace(target, event=ledger.event, adjacency=plan.adjacency, guarantee=done.guarantee)
    return Scene.of(corpus, model.eval(), target=target)


@pytest.fixture(scope="module")
def folder(tiny_encoder: Callable[[str], Path]) -> str:
    return str(tiny_encoder("bert"))


@pytest.fixture(scope="module")
def plain(folder: str) -> Scene:
    return scene_of(corpus_of(), folder)


@pytest.fixture(scope="module")
def private(folder: str) -> Scene:
    return scene_of(corpus_of(12), folder, DPSGD(epsilon=3.0, clip_norm=1.0))


def request_for(name: str, **changes: Any) -> AttackRequest:
    return AttackRequest(attack_of(name), name=name, **changes)


def leak(result: Any, metric: str) -> Any:
    return next(one for one in result.leakages if one.metric == metric)


@pytest.mark.parametrize("name", ["loss", "population", "mia", "mia-r", "mia-n", "lira", "rmia", "author"])
def test_every_attack_measures_a_model_beside_its_certificate(name: str, private: Scene) -> None:
    changes = {"references": 8} if name in {"mia", "mia-r", "lira", "rmia", "author"} else {}
    found = attack_once(request_for(name, **changes), private)
    auc = leak(found, "auc")
    assert auc.low <= found.bounds["auc"] < 1 and auc.chance == 0.5
    assert all(one.low <= found.bounds[one.metric] for one in found.leakages)
    assert (found.guarantee is not None and "certificate allows at most" in found.verdict) or auc.n < 20
    assert found.release["scope"] == "model" and found.release["given"]
    json.dumps(found.as_dict(), allow_nan=False)
    bound = found.details["roc"]["bound"]
    assert bound == sorted(bound) and all(0 <= value <= 1 for value in bound)


@pytest.mark.parametrize("name", ["loss", "lira"])
def test_labels_learned_by_heart_give_members_away(name: str, plain: Scene) -> None:
    """The labels are random, so that a head can only learn them by heart."""
    assert leak(attack_once(request_for(name), plain), "auc").value > 0.55
    assert attack_once(request_for("lira", references=8), plain).bounds == {}


def test_the_same_seed_gives_the_same_figures(plain: Scene) -> None:
    first, second = (attack_once(request_for("lira", references=4, seed=3), plain) for _ in range(2))
    assert first.leakages == second.leakages


def test_units_are_never_on_both_sides(plain: Scene) -> None:
    corpus = corpus_of(12)
    mixed = replace(corpus, units=tuple(f"author {row % 20}" for row in range(len(corpus))))
    target = replace(plain.target, corpus=mixed)  # type: ignore[type-var]
    with pytest.raises(DataError, match="held-out rows"):
        select(plain.model, target, request_for("loss"), Rng(0))
    some = replace(corpus, units=(*corpus.units[:-3], *corpus.units[:3]))  # type: ignore[index]
    candidates = select(plain.model, replace(target, corpus=some), request_for("rmia"), Rng(0))
    sides = [set(candidates.units[candidates.is_member == side].tolist()) for side in (True, False)]
    assert candidates.left_out == 3 and not sides[0] & sides[1]
    assert not set(candidates.population.tolist()) & set(candidates.rows.tolist())
    few = select(plain.model, replace(target, corpus=corpus), request_for("loss", members=20), Rng(0))
    assert few.is_member.sum() <= 20
    for unit in np.unique(few.units):  # whole units
        assert (few.units == unit).sum() == (corpus.unit_index == unit).sum()


def test_a_text_on_both_sides_is_neither_member_nor_outsider(plain: Scene) -> None:
    corpus = corpus_of()
    repeated = replace(corpus, texts=(*TEXTS[:-1], f"  {TEXTS[0].upper()} "))
    target = replace(plain.target, corpus=repeated)  # type: ignore[type-var]
    assert select(plain.model, target, request_for("loss"), Rng(0)).left_out == 1


def test_a_text_of_several_training_units_is_neither_on_both_sides(plain: Scene) -> None:
    """With or without one of its units the model sees it, so that no certificate of one unit covers it."""
    copied = replace(corpus_of(), texts=(TEXTS[0], TEXTS[0], *TEXTS[2:-1], TEXTS[0]))
    candidates = select(plain.model, replace(plain.target, corpus=copied), request_for("loss"), Rng(0))  # type: ignore[type-var]
    last = len(TEXTS) - 1
    assert candidates.left_out == 3 and not {0, 1, last} & set(candidates.rows.tolist())
    assert {0, 1} <= set(candidates.pool.tolist()) and last not in candidates.pool
    own = replace(copied, units=("same", "same", *(f"row {row}" for row in range(2, len(TEXTS)))))
    candidates = select(plain.model, replace(plain.target, corpus=own), request_for("loss"), Rng(0))  # type: ignore[type-var]
    assert candidates.left_out == 1 and {0, 1} <= set(candidates.rows.tolist())


def test_the_numbers_of_units_say_nothing_about_membership(private: Scene) -> None:
    """The corpus counts units from its first row, and training rows come first in it."""
    assert private.target is not None
    request = request_for("loss")
    candidates = select(private.model, private.target, request, Rng(0))
    units = observe(request, private, private.target, candidates, lambda stage, done, total: None).units
    assert units is not None
    assert len(set(zip(units.tolist(), candidates.units.tolist(), strict=True))) == len(set(candidates.units.tolist()))
    first = list(dict.fromkeys(units.tolist()))
    assert first == list(range(len(first)))  # in the order of the candidates, which is random


def test_halves_are_whole_units_and_balanced() -> None:
    units = np.repeat(np.arange(9), 3)
    halves = random_halves(units, 6, Rng(0))
    assert (halves.sum(axis=0) == 3).all()
    assert all(len(set(row[units == unit].tolist())) == 1 for row in halves for unit in range(9))
    with pytest.raises(DataError.__base__, match="even number"):  # type: ignore[arg-type]
        random_halves(units, 3, Rng(0))


@pytest.mark.parametrize("protect", [None, DPSGD(noise_multiplier=1.0), DirDPSGD(kappa=1e13)])
def test_references_are_trained_like_the_target(protect: Any, plain: Scene) -> None:
    """The slow way, one model at a time on tokens, gives the same outputs as the fast way on vectors."""
    assert plain.target is not None
    corpus, rows = plain.target.corpus, np.arange(40)
    choices = replace(plain.target.choices, protect=protect, training=replace(LOOP, epochs=3))
    included = random_halves(rows, 2, Rng(0))
    vectors = encode(plain.model, corpus)
    shared = {"protected": True, "seed": 7, "progress": lambda stage, done, total: None}
    fast = reference_outputs(choices, plain.model, ReferenceText(corpus, rows, vectors), included, [rows], **shared)[0]
    slow = reference_outputs(choices, plain.model, ReferenceText(corpus, rows), included, [rows], **shared)[0]
    assert fast.logits == pytest.approx(slow.logits, abs=2e-3)
    assert np.ptp(slow.logits) > 0.1


def test_references_of_a_target_that_started_from_public_text_start_from_it_too(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, rows, path = corpus_of(), np.arange(40), tmp_path / "web.csv"
    path.write_text(
        "text,label\n" + "".join(f"a {word} is {word},{'yes' if i % 2 else 'no'}\n" for i, word in enumerate(WORDS))
    )
    held_out = corpus.texts[corpus.splits.index("validation")]
    with path.open("a") as file:
        file.write(f"{held_out},no\n")  # the target does not read it
    protect = DPSGD(noise_multiplier=1.0, public=str(path))
    settings = ModelSettings(encoder=folder, train="head", dropout=0.0)
    choices = RunChoices(TextSource("toy"), settings, replace(LOOP, epochs=3), protect, 0)
    target = Classifier.build(corpus, settings, rng=Rng(0).fork("model"))
    plan = TrainingPlan.make(
        target, corpus, protect=protect, training=choices.training, public=public_corpus(protect, corpus, Columns())
    )
    start_from_public(target, plan, Job())
    starts: list[bool] = []

    def repeated(model: TextModel, plan: TrainingPlan, job: Job) -> None:
        assert plan.public is not None and held_out not in plan.public.texts
        starts.append(start_from_public(model, plan, job))

    monkeypatch.setattr(signals, "start_from_public", repeated)
    shared = {"protected": True, "seed": 7, "progress": lambda stage, done, total: None}
    included, text = random_halves(rows, 4, Rng(0)), ReferenceText(corpus, rows, encode(target, corpus))
    fast = reference_outputs(choices, target, text, included, [rows], **shared)[0]
    slow = reference_outputs(choices, target, ReferenceText(corpus, rows), included, [rows], **shared)[0]
    assert starts == [True, True], "once for all references"
    assert fast.logits == pytest.approx(slow.logits, abs=2e-3)
    bare = reference_outputs(replace(choices, protect=DPSGD(1.0)), target, text, included, [rows], **shared)[0]
    assert np.abs(bare.logits - fast.logits).max() > 0.1


def test_references_without_protection_differ_from_those_with_it(private: Scene) -> None:
    figures = [
        attack_once(request_for("lira", references=4, references_protected=wanted), private) for wanted in (True, False)
    ]
    assert figures[0].leakages != figures[1].leakages
    assert any("under its protection" in words for words in figures[0].release["given"])
    assert any("unprotected" in words for words in figures[1].release["given"])


def test_attacks_on_one_scene_share_their_reference_models(plain: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> list[Outputs]:
        calls.append(options["seed"])
        return reference_outputs(*args, **options)

    monkeypatch.setattr(membership, "reference_outputs", counted)
    own = replace(plain, cache={})
    shared = [attack_once(request_for(name, references=4), own).leakages for name in ("mia", "mia-r", "lira")]
    assert len(calls) == 1
    alone = attack_once(request_for("lira", references=4), replace(plain, cache={}))
    assert alone.leakages == shared[2] and len(calls) == 2
    for other in ({"references": 6}, {"references": 4, "seed": 1}, {"references": 4, "members": 10}):
        attack_once(request_for("lira", **other), own)
    assert len(calls) == 5
    assert own.target is not None
    attack_once(request_for("lira", references=4), replace(own, target=replace(own.target, guarantee=None)))
    assert len(calls) == 6  # trained like another target


def test_bad_input_is_rejected_with_the_remedy(plain: Scene, folder: str) -> None:
    with pytest.raises(UnsupportedError, match="Name the folder of a finished run"):
        attack_once(request_for("lira"), replace(plain, target=None))
    with pytest.raises(UnsupportedError, match="Expected a language model for ez-mia"):
        attack_once(request_for("ez-mia"), plain)
    unseen = replace(corpus_of(), label_names=("no", "perhaps"))
    with pytest.raises(DataError, match="perhaps"):
        attack_once(request_for("loss"), replace(plain, target=replace(plain.target, corpus=unseen)))  # type: ignore[type-var]
    with pytest.raises(DataError, match="unit column for author"):
        attack_once(request_for("author"), plain)
    few = corpus_of().take([0, 1, 2, 80])
    with pytest.raises(DataError, match="at least 2 non-members"):
        attack_once(request_for("loss"), replace(plain, target=replace(plain.target, corpus=few)))  # type: ignore[type-var]
    with pytest.raises(DataError, match="held-out rows"):
        none = corpus_of().take(range(20))
        attack_once(request_for("loss"), replace(plain, target=replace(plain.target, corpus=none)))  # type: ignore[type-var]


def test_references_trained_on_the_targets_own_members_are_rejected_offline() -> None:
    logits = np.zeros((4, 3))
    included = np.ones((4, 3), dtype=bool)
    outputs = Outputs(-logits, logits)
    signals = Signals(Outputs(np.zeros(3), np.zeros(3)), references=References(outputs, included))
    with pytest.raises(DataError, match="must not all be trained on the target's own members"):
        Lira(online=False).run(ModelRelease(None), Knowledge(extra={Need.SIGNALS.value: signals}), Rng(0))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="references"):
        bare = Signals(Outputs(np.zeros(3), np.zeros(3)))
        Lira().run(ModelRelease(None), Knowledge(extra={Need.SIGNALS.value: bare}), Rng(0))  # type: ignore[arg-type]


def test_a_model_of_another_tokenizer_is_rejected(tiny_causal: Callable[[str], Path]) -> None:
    first, second = (
        LanguageModel.load(ModelSettings(str(tiny_causal(kind))), rng=Rng(0)) for kind in ("llama", "llama")
    )
    check_same_tokens(first, second)
    second.tokenizer.add_tokens(["newword"])
    with pytest.raises(DataError, match="fine-tuned from"):
        check_same_tokens(first, second)
    with pytest.raises(DataError, match="another tokenizer"):
        TokenScores(np.zeros((2, 3)), np.zeros((2, 3), bool), np.ones((2, 3), bool), np.zeros((2, 4)))


def test_a_language_model_that_learned_its_texts_by_heart_gives_them_away(
    tiny_causal: Callable[[str], Path], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    texts = tuple(" ".join(draw.choice(WORDS, 10)) for _ in range(140))  # nothing to learn but by heart
    first = LanguageModel.load(ModelSettings(str(tiny_causal("llama"))), rng=Rng(0))
    public, before = Corpus("public", texts[80:]), TrainSettings(epochs=4, batch_size=8, learning_rate=0.01)
    train(first, public, TrainingPlan.make(first, public, training=before))
    shutil.copytree(tiny_causal("llama"), tmp_path / "pretrained")
    first.network.save_pretrained(tmp_path / "pretrained")
    corpus = Corpus("toy", texts[:80], splits=("train",) * 40 + ("validation",) * 40)
    settings = ModelSettings(str(tmp_path / "pretrained"))
    loop = TrainSettings(epochs=20, batch_size=8, learning_rate=0.01, weight_decay=0.0)
    model = LanguageModel.load(settings, rng=Rng(0))
    train(model, corpus, TrainingPlan.make(model, corpus, training=loop))
    target = Target(corpus, RunChoices(TextSource("toy", task="unlabelled"), settings, loop))
    scene = Scene.of(corpus, model.eval(), target=target)
    for name in ("ez-mia", "min-k", "loss"):
        assert leak(attack_once(request_for(name), scene), "auc").low > 0.5, name


def test_token_scores_do_not_depend_on_padding(tiny_causal: Callable[[str], Path]) -> None:
    """On a GPU batches are padded to a multiple of eight tokens, beyond the longest text."""
    model = LanguageModel.load(ModelSettings(str(tiny_causal("llama"))), rng=Rng(0)).eval()
    corpus = Corpus("toy", ("the heart", "the heart and the knee of two", "a dose"))
    tokens = tokens_for(model, corpus)
    wide = -(-tokens.columns["input_ids"].shape[1] // 8) * 8 + 8
    columns = {
        name: torch.nn.functional.pad(column, (0, wide - column.shape[1]), value=tokens.pad_id if "ids" in name else 0)
        for name, column in tokens.columns.items()
    }
    padded = replace(tokens, columns=columns, pad_to=8)
    first, second = token_scores(model, tokens, model), token_scores(model, padded, model)
    count = first.real.sum(axis=1)
    assert count.tolist() == second.real.sum(axis=1).tolist()
    for one, other in ((first.target, second.target), (first.pretrained, second.pretrained)):
        assert one is not None and other is not None
        assert one[first.real] == pytest.approx(other[second.real], abs=1e-5)


def test_the_confidence_of_a_sure_model_keeps_its_precision(plain: Scene) -> None:
    assert plain.target is not None
    model: TextModel = plain.model
    tokens = tokens_for(model, plain.target.corpus)
    found = outputs_of(model, tokens)
    assert found.probabilities is not None and np.isfinite(found.logits).all()
    own = np.exp(-found.losses)
    assert found.logits == pytest.approx(np.log(own) - np.log1p(-own), abs=1e-6)
