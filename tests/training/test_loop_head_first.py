"""The head is trained first, then all layers; and training that starts from public text."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.planned import train

from discreet.core.errors import DataError, ModelError, SettingError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import EACH_ROW, TextSource, load
from discreet.experiment import RunOptions, RunRequest, train_once
from discreet.models.build import encode
from discreet.models.classifier import Classifier
from discreet.models.lora import is_adapter
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import NAME, PUBLIC, PUBLIC_START
from discreet.training.evaluation import represent
from discreet.training.plan import PUBLIC_TEXT, TrainingPlan, model_settings

SETTINGS = TrainSettings(epochs=2, batch_size=10, learning_rate=1e-2, head_share=0.5)


@pytest.fixture
def corpus(toy_csv: Path) -> Corpus:
    return load(toy_csv, classes=("clinic", "ward"))


def build(corpus: Corpus, folder: Path, **changes: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), dropout=0.0, **changes)


def state(model: Classifier) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[bool]:
    """Whether parameters of the head (True) and of the encoder (False) have changed."""
    return {name.startswith("head.") for name in before if not torch.equal(before[name], after[name])}


def test_the_first_steps_train_the_head_alone_and_cost_the_same(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(corpus, tiny_encoder("bert"))
    plan = TrainingPlan.make(model, corpus, protect=DPSGD(epsilon=3), training=SETTINGS)
    whole = TrainingPlan.make(model, corpus, protect=DPSGD(epsilon=3), training=replace(SETTINGS, head_share=0.0))
    assert (plan.head_steps, whole.head_steps) == (plan.steps // 2, 0)
    assert (plan.steps, plan.protect, plan.budget) == (whole.steps, whole.protect, whole.budget)
    steps, states = [], [state(model)]

    def stop() -> bool:
        steps.append(len(steps))
        states.append(state(model))
        return False

    done = train(model, corpus, SETTINGS, seed=0, protect=DPSGD(epsilon=3), should_stop=stop)
    assert done.guarantee is not None and done.guarantee.certified and done.guarantee.epsilon <= 3
    kinds = [changed(a, b) for a, b in pairwise(states)]
    assert all(kind == {True} for kind in kinds[: plan.head_steps])
    assert all(kind == {True, False} for kind in kinds[plan.head_steps : plan.steps - 1])
    assert all(p.requires_grad for name, p in model.named_parameters() if "embeddings" not in name)


@pytest.mark.parametrize("after", [3, 7])
def test_a_resumed_run_ends_with_the_same_weights(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, after: int
) -> None:
    settings = replace(SETTINGS, epochs=1)
    full = build(corpus, tiny_encoder("bert"))
    train(full, corpus, settings, seed=0, protect=DPSGD(1.0), noise_seed=5)
    calls = iter(range(1, 1000))
    resumed = build(corpus, tiny_encoder("bert"))
    first = train(
        resumed,
        corpus,
        settings,
        seed=0,
        protect=DPSGD(1.0),
        noise_seed=5,
        workspace=tmp_path,
        should_stop=lambda: next(calls) >= after,
    )
    assert not first.finished and first.steps == after
    again = build(corpus, tiny_encoder("bert"))
    done = train(again, corpus, settings, seed=0, protect=DPSGD(1.0), noise_seed=5, workspace=tmp_path)
    assert done.finished and not changed(state(full), state(again))


def test_a_head_share_that_cannot_be_used_is_rejected(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    whole, frozen = (build(corpus, tiny_encoder("bert"), train=part) for part in ("all", "head"))
    for model, protect in (
        (whole, None),
        (whole, DirDPSGD(kappa=10.0)),
        (frozen, DPSGD(epsilon=3)),
        (whole, DPSGD(1.0, correlation="lambda-cgd")),
    ):
        with pytest.raises(SettingError, match="head_share"):
            TrainingPlan.make(model, corpus, protect=protect, training=SETTINGS)
        assert TrainingPlan.make(model, corpus, protect=protect).head_steps == 0
    with pytest.raises(SettingError, match="head_share"):
        TrainSettings(head_share=1.0)


def test_training_starts_from_public_text(corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    protect, settings = DPSGD(1.0, public="web"), TrainSettings(epochs=1, batch_size=10, learning_rate=1e-9)
    public = replace(corpus.split("train"), name="web")
    model = build(corpus, tiny_encoder("bert"))
    before = state(model)
    calls = iter(range(1, 1000))
    steps = 3 * -(-len(public) // 32)
    common = {"seed": 0, "protect": protect, "noise_seed": 5, "public": public, "workspace": tmp_path}
    stopped = train(
        model,
        corpus,
        settings,
        **common,
        should_stop=lambda: next(calls) > steps + 3,
    )
    assert not stopped.finished and (tmp_path / PUBLIC_START).exists()
    again = build(corpus, tiny_encoder("bert"))
    done = train(again, corpus, settings, **common)
    moved = max(float((before[name] - value).abs().max()) for name, value in state(again).items())
    assert done.finished and done.guarantee is not None and moved > 1e-4  # the private steps alone move 1e-8
    assert any("public text 'web'" in text for text in done.guarantee.assumptions)


@pytest.mark.parametrize("steps", [1, 6], ids=["in the public text", "after it"])
def test_a_run_that_stopped_on_public_text_resumes_with_the_same_text_only(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, steps: int
) -> None:
    web = replace(corpus.split("train"), name="web")
    other = web.take(range(len(web) - 1))
    settings, shared = TrainSettings(epochs=1, batch_size=10), {"seed": 0, "protect": DPSGD(1.0, public="web")}
    shared |= {"noise_seed": 5}

    def build_again(part: str = "head") -> Classifier:
        return build(corpus, tiny_encoder("bert"), train=part)

    full, calls = build_again(), iter(range(1, 1000))
    assert train(full, corpus, settings, public=web, **shared).finished
    stopped = train(
        build_again(),
        corpus,
        settings,
        public=web,
        workspace=tmp_path,
        should_stop=lambda: next(calls) >= steps,
        **shared,
    )
    assert not stopped.finished
    assert (tmp_path / PUBLIC / NAME).exists() is (steps == 1) is not (tmp_path / PUBLIC_START).exists()
    (tmp_path / NAME).unlink(missing_ok=True)  # as if killed before the first checkpoint of the private steps
    for part, public in (("head", other), ("lora-2", web)):
        with pytest.raises(ModelError, match="something has changed"):
            train(build_again(part), corpus, settings, public=public, workspace=tmp_path, **shared)
    again = build_again()
    assert train(again, corpus, settings, public=web, workspace=tmp_path, **shared).finished
    assert not changed(state(full), state(again)) and not (tmp_path / PUBLIC).exists()


def test_public_text_with_other_labels_is_rejected(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    public = replace(corpus.split("train"), name="web", label_names=("no", "yes"))
    model, protect = build(corpus, tiny_encoder("bert")), DPSGD(epsilon=3, public="web")
    with pytest.raises(DataError, match=r"Expected the labels .* in the public text 'web', got \['no', 'yes'\]"):
        train(model, corpus, protect=protect, public=public)
    with pytest.raises(DataError, match="got none. It needs the same columns"):
        train(model, corpus, protect=protect, public=public.unlabelled())


def test_public_text_is_never_left_out_in_silence(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model, protect = build(corpus, tiny_encoder("bert")), DPSGD(epsilon=3, public="web")
    with pytest.raises(DataError, match="Expected the public text 'web' that training starts from"):
        TrainingPlan.make(model, corpus, protect=protect)
    with pytest.raises(SettingError, match="left out in your own training loop"):
        TrainingPlan.for_loop(model, protect, batch_size=4, num_units=20, steps=2)


def test_the_private_text_is_no_public_text(toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("same.csv", "folder/train.csv"):
        (tmp_path / name).symlink_to(toy_csv)
    for same in (str(toy_csv), str(tmp_path / "same.csv"), str(tmp_path / "folder")):
        protect = DPSGD(epsilon=3, public=same)
        settings = model_settings({"encoder": str(tiny_encoder("bert")), "train": "head"}, protect, 30)
        request = RunRequest(TextSource(str(toy_csv), unit=EACH_ROW), settings, TrainSettings(epochs=1), protect)
        with pytest.raises(SettingError, match="to be other text than the private one"):
            train_once(request, tmp_path / "run", options=RunOptions(device="cpu"))
    copy, said = tmp_path / "copy.csv", list[str]()
    copy.write_bytes(toy_csv.read_bytes())
    request = replace(request, protect=DPSGD(1.0, public=str(copy)))
    train_once(request, tmp_path / "run", options=RunOptions(device="cpu", say=said.append))
    rows = len(load(toy_csv).split("train"))
    assert f"Private detail, do not share this line: {rows} of the public texts occur in" in " ".join(said)


@pytest.mark.parametrize("part", ["head", "lora-2"])
def test_public_text_trains_all_layers_and_private_text_only_its_part(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, part: str
) -> None:
    protect, settings = DPSGD(1.0, public="web"), TrainSettings(epochs=1, batch_size=10)
    public = replace(corpus.split("train"), name="web")
    model = build(corpus, tiny_encoder("bert"), train=part, embeddings=False)
    before, marks = state(model), {n: p.requires_grad for n, p in model.named_parameters()}
    encode(model, corpus.split("validation"), tmp_path)
    states: list[dict[str, torch.Tensor]] = []
    starts: list[bool] = []

    def stop() -> bool:
        states.append(state(model))
        starts.append(model.settings.train == part)
        return False

    stages: list[str] = []
    done = train(
        model,
        corpus,
        settings,
        seed=0,
        protect=protect,
        noise_seed=5,
        public=public,
        should_stop=stop,
        watch=lambda report: stages.append(report.stage),
    )
    assert done.finished and model.settings.train == part
    assert [stage for stage in dict.fromkeys(stages) if stage != "encoding"] == ["public text", "training"]
    assert marks == {n: p.requires_grad for n, p in model.named_parameters()}
    first = starts.index(True) - 1  # the last step on public text
    moved = {n for n, value in states[first].items() if not torch.equal(before[n], value)}
    assert not [n for n in moved if is_adapter(n)]
    assert {"word_embeddings", "query", "head"} <= {word for n in moved for word in n.split(".")}
    after = {n for n, value in state(model).items() if not torch.equal(states[first][n], value)}
    assert after and all(n.startswith("head.") or is_adapter(n) for n in after)
    held_out = corpus.split("validation")  # vectors of the encoder as it was must not be read from the cache
    expected = represent(model, tokens_for(model, held_out))
    assert torch.allclose(encode(model, held_out, tmp_path).vectors, expected, atol=1e-5)


@pytest.mark.parametrize("part", ["head", "all"])
def test_beside_a_private_model_stands_what_public_text_alone_reaches(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, part: str
) -> None:
    words, names = ("slow", "fine", "long", "odd", "warm", "plain"), load(toy_csv).label_names
    lines = [f"a {a} and {b} one,{names[i % 2]}" for i, (a, b) in enumerate(pairwise(words * 4))]
    (tmp_path / "web.csv").write_text("\n".join(["text,label", *lines]))
    protect = DPSGD(epsilon=3, public=str(tmp_path / "web.csv"))
    settings = model_settings({"encoder": str(tiny_encoder("bert")), "train": part}, protect, 30)
    training = TrainSettings(epochs=1, learning_rate=1e-9)  # nothing is learned from private text
    request = RunRequest(TextSource(str(toy_csv), unit=EACH_ROW), settings, training, protect)
    result = train_once(request, tmp_path / "run", options=RunOptions(device="cpu")).values()
    row = result["public"]
    assert row["source"] == PUBLIC_TEXT and row["metric"] == "accuracy" and "threshold" not in row
    assert row["utility"] == result["utility"] and row["is_beaten"] is False
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "the model trained on the public text alone reaches accuracy" in card and "gains nothing" in card
    assert not (tmp_path / "run" / PUBLIC_START).exists()
