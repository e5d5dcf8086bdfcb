"""The user's side and the server's, from a training on a tiny encoder to refusals that spend nothing."""

import errno
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from discreet.accounting.events import GaussianDpEvent, NoOpDpEvent, VisibleVectorsDpEvent
from discreet.accounting.ledger import Ledger
from discreet.accounting.local_layer import Sending
from discreet.core.errors import BudgetError, DataError, ModelError, OutputError, SettingError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.experiment import RunOptions, RunRequest, train_once
from discreet.local.client import Mixed, UserSide
from discreet.local.server import ServerSide, linear_head
from discreet.models.classifier import ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.local.decoys import Decoys
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import whole_space
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.local.release import LocalLayer, SentOnce
from discreet.runs import folder
from discreet.runs.folder import load_run
from discreet.training.evaluation import represent


def run(toy_csv: Path, encoder: Path, out: Path, **changes: object) -> dict[str, object]:
    epochs, resume = int(str(changes.pop("epochs", 6))), bool(changes.pop("resume", False))
    model = {"encoder": str(encoder), "train": changes.pop("train", "head")}
    asked = LocalPrivacy(**{"epsilon": 12.0, "dimension": 12, **changes})  # type: ignore[arg-type]
    request = RunRequest(
        data=TextSource(str(toy_csv), classes=("clinic", "ward")),
        model=ModelSettings(**model),  # type: ignore[arg-type]
        training=TrainSettings(epochs=epochs, batch_size=16, learning_rate=0.05),
        protect=asked,
    )
    return train_once(request, out, options=RunOptions(resume=resume)).values()


@pytest.fixture(scope="module")
def finished(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("local") / "a"
    return out, run(toy_csv, tiny_encoder("bert"), out, queries=5)


def test_a_run_is_certified_and_writes_two_sides(finished: tuple[Path, dict[str, object]]) -> None:
    out, done = finished
    promise = done["guarantee"]
    assert isinstance(promise, dict)
    assert promise["certified"]
    assert promise["epsilon"] == pytest.approx(12.0, abs=1e-3)
    assert promise["adjacency"] == "replace-one"
    assert "labels are public" in promise["sentence"]
    assert sorted(p.name for p in (out / "server").iterdir()) == ["head.safetensors", "settings.toml"]
    names = {p.name for p in (out / "client").iterdir()}
    encoder = {"tokenizer", "encoder.json", "encoder.safetensors"}
    assert names == {"settings.toml", "path.safetensors", "ledger.jsonl"} | encoder


def test_a_run_whose_disk_was_full_in_the_end_is_finished_without_spending_again(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder, "model_card", full)  # the two sides are written by then
        with pytest.raises(OutputError, match=r"Free some space, then resume \(resume=True\)"):
            run(toy_csv, tiny_encoder("bert"), tmp_path / "a")
    assert (tmp_path / "a.unfinished" / "server").exists()
    run(toy_csv, tiny_encoder("bert"), tmp_path / "a", resume=True)
    assert Ledger.read(tmp_path / "a" / "ledger.jsonl").spends == 1
    UserSide.load(tmp_path / "a" / "client").ledger.close()
    assert ServerSide.load(tmp_path / "a" / "server").label_names


def test_the_two_sides_answer_like_the_run_does(finished: tuple[Path, dict[str, object]]) -> None:
    """With the noise of both taken away, client and server together are the model."""
    out, _ = finished
    server = ServerSide.load(out / "server")
    model = load_run(out).model
    texts = ["the heart was sharp", "a knee was slow", "the doctor"]
    with UserSide.load(out / "client") as user:
        rows = user.tokens(texts)
        vectors = represent(model, rows)
        coordinates = user.path.coordinates(represent(user.model, rows))
        query = model.query
        assert query is not None
        path = query.path(model.head)  # type: ignore[union-attr]
        assert path.axes is not None
        assert torch.allclose(coordinates, path.coordinates(vectors), atol=1e-4)
        expected = model.decide(path.axes.back(coordinates)).softmax(1)
        assert np.allclose(server.answer(coordinates), expected.detach().numpy(), atol=1e-4)
        assert user.width == server.width == 8


def test_queries_are_spent_before_they_leave_until_nothing_is_left(finished: tuple[Path, dict[str, object]]) -> None:
    out, _ = finished
    with UserSide.load(out / "client") as user:
        release = user.protect(["the heart was sharp"])
        assert release.vectors.shape == (1, 8)
        assert release.guarantee is not None
        assert release.guarantee.certified
        assert release.guarantee.epsilon == pytest.approx(12.0, abs=1e-3)
        assert ServerSide.load(out / "server").answer(release).sum() == pytest.approx(1.0, abs=1e-5)
        assert not torch.equal(release.vectors, user.protect(["the heart was sharp"]).vectors)
        spent = user.spent().epsilon
        assert spent == pytest.approx(24.0, abs=1e-2)
        for bad in ([], [""], "the heart"):
            with pytest.raises(DataError, match="Expected"):
                user.protect(bad)
        with pytest.raises(DataError, match="single texts"):
            user.protect(["one"], ["two"])
        with pytest.raises(BudgetError, match="budget"):
            user.protect(["the knee"] * 4)
        assert user.spent().epsilon == spent
        user.protect(["a", "b", "c"])
        with pytest.raises(BudgetError):
            user.protect(["one more"])
    assert Ledger.read(out / "client" / "ledger.jsonl").spends == 3


def test_a_server_refuses_whatever_is_no_release() -> None:
    server = ServerSide(linear_head(torch.ones(2, 8), torch.zeros(2)), 8, ("no", "yes"))
    for bad, said in (
        (["raw text"], "takes no text"),
        ("raw text", "takes no text"),
        (torch.zeros(1, 7), "of width 8"),
        (torch.zeros(8), "of width 8"),
        (torch.zeros(0, 8), "of width 8"),
        (torch.full((1, 8), float("nan")), "finite"),
        (torch.zeros(1, 8, dtype=torch.int64), "infinity or integers"),
    ):
        with pytest.raises(DataError, match=said):
            server.answer(bad)  # type: ignore[arg-type]


def test_up_sampling_hides_queries_among_decoys_within_the_budget(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    run(toy_csv, tiny_encoder("bert"), tmp_path / "a", mechanism="gaussian")
    server = ServerSide.load(tmp_path / "a" / "server")
    texts = ["the heart was sharp", "a knee was slow"]
    with UserSide.load(tmp_path / "a" / "client") as user:
        decoys = Decoys(words=("film", "plot", "calm"))
        mixed = user.protect_among(texts, decoys, count=3, epsilon=3.0, steps=12)
        assert mixed.guarantee.certified
        assert 2.9 < mixed.guarantee.epsilon <= 3.0 + 1e-6
        assert "nobody learns which" in mixed.guarantee.sentence()
        assert len(mixed.steps) == 12
        assert all(step.vectors.shape == (2, 8) for step in mixed.steps)
        answers = mixed.collect([server.answer(step) for step in mixed.steps])
        assert answers.shape == (2, 2)
        assert 0 < sum(int(true.sum()) for true in mixed.true) < 24
        assert "true" not in repr(mixed)
        assert 3.0 < user.spent().epsilon < 6.0 + 1e-6  # a person's two texts, each counted with its decoys
        with pytest.raises(SettingError, match="count"):
            user.protect_among(texts, decoys, count=0)


def test_a_query_among_decoys_is_drawn_as_often_as_is_counted_and_answered_by_its_own_rows(
    finished: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    shutil.copytree(finished[0] / "client", tmp_path / "client")
    with UserSide.load(tmp_path / "client") as user:
        user.close()  # it is used up; a ledger in memory serves here
        user.ledger, user.rng = Ledger.open(None, unit="person", adjacency="replace-one"), Rng(3)
        mixed = user.protect_among(["the heart was sharp"], Decoys(words=("film", "plot")), count=4, steps=400)
        assert not mixed.guarantee.certified  # the seed was given
    true = np.stack(mixed.true)[:, 0]
    assert 0.13 < true.mean() < 0.27  # one in five
    answers = [np.array([[float(t), 2.0]], dtype=np.float32) for t in true]
    assert mixed.collect(answers).tolist() == [[1.0, 2.0]]
    never = Mixed(mixed.steps[:2], (np.array([False]),) * 2, mixed.guarantee)
    assert np.isnan(never.collect(answers[:2])).all()


def test_an_encoder_that_is_trained_along_is_never_certified(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    shared = {"mechanism": "gaussian", "sampling": "fixed", "train": "all"}
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "a", position="token", **shared)
    promise = done["guarantee"]
    assert isinstance(promise, dict)
    assert not promise["certified"]
    assert "encoder was trained on private text" in promise["sentence"]
    with UserSide.load(tmp_path / "a" / "client") as user:
        release = user.protect(["the heart was sharp"])
        assert release.guarantee is not None
        assert not release.guarantee.certified
        assert ServerSide.load(tmp_path / "a" / "server").answer(release).shape == (1, 2)


def test_a_fixed_draw_at_every_step_is_certified_for_a_frozen_encoder_and_the_papers_claim_is_not(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    shared = {"mechanism": "gaussian", "sampling": "fixed"}
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "open", **shared)
    told = done["guarantee"]
    assert isinstance(told, dict)
    assert not told["certified"]
    assert "every vector is sent with its label as it is" in told["sentence"]
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "a", label_epsilon=2.0, **shared)
    promise = done["guarantee"]
    assert isinstance(promise, dict)
    assert promise["certified"]
    assert 11.0 < promise["epsilon"] <= 12.0 + 1e-6
    columns = done["epsilon_by_adjacency"]  # an absent vector is seen to be absent: no other column has a figure
    assert columns == {"add/remove": None, "zero-out": None, "replace-one": pytest.approx(promise["epsilon"])}
    assert "does not learn which sentences were drawn" in promise["sentence"]
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "b", calibration="paper-vector", **shared)
    claimed = done["guarantee"]
    assert isinstance(claimed, dict)
    assert not claimed["certified"]
    assert claimed["epsilon"] == pytest.approx(12.0, rel=1e-3)
    assert "the proven figure" in claimed["sentence"]


def test_coins_at_every_step_are_certified_with_hidden_labels_and_the_papers_noise_follows_the_batch(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    shared = {"mechanism": "gaussian", "sampling": "coins", "epochs": 1}
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "a", label_epsilon=2.0, **shared)
    promise = done["guarantee"]
    assert isinstance(promise, dict)
    assert promise["certified"]
    assert 11.0 < promise["epsilon"] <= 12.0 + 1e-6
    assert "drawn independently" in promise["sentence"]
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "b", calibration="paper", **shared)
    claimed = done["guarantee"]
    assert isinstance(claimed, dict)
    assert not claimed["certified"]
    assert claimed["epsilon"] == pytest.approx(12.0, rel=1e-3)
    assert "the proven figure" in claimed["sentence"]
    spent = (tmp_path / "b" / "ledger.jsonl").read_text(encoding="utf-8")
    sizes = {int(found) for found in re.findall(r'"drawn": ?(\d+)', spent)}
    assert len(sizes) > 1  # batches of many sizes, each with noise of its own


def test_noise_by_the_size_of_a_batch_is_what_is_counted() -> None:
    sending = Sending(100, 10, 5, sampling="coins")
    layer = LDPLayer("gaussian", 8, 2.0)
    protect = LocalLayer(layer, layer, whole_space(8), sending, dynamic=True)
    live = protect.live(100, 8, 2, Rng(0), torch.device("cpu"))
    assert live.cost(0, 0, 20)[0] == VisibleVectorsDpEvent(GaussianDpEvent(2.0), 20, 100)
    assert live.cost(0, 0, 0)[0] == NoOpDpEvent()
    few, many = (live.draw(np.arange(n), (n, 8), 0, 0)["noise"].std() for n in (10, 1000))
    assert few == pytest.approx(2.0, rel=0.3)
    assert many == pytest.approx(200.0, rel=0.1)
    usual = replace(protect, dynamic=False).live(100, 8, 2, Rng(0), torch.device("cpu"))
    assert usual.cost(0, 0, 20)[0] == usual.cost(0, 0, 0)[0] == sending.step(layer.event)  # an empty step counts too


def test_labels_that_are_hidden_are_paid_for(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    done = run(toy_csv, tiny_encoder("bert"), tmp_path / "a", label_epsilon=2.0)
    promise = done["guarantee"]
    assert isinstance(promise, dict)
    assert promise["epsilon"] == pytest.approx(12.0, abs=1e-2)
    assert "randomized response" in promise["sentence"]


def test_settings_outside_their_rules_are_refused(tmp_path: Path) -> None:
    for changes, said in (
        ({"epsilon": 0.0}, "epsilon to be > 0 and finite, got 0.0"),
        ({"epsilon": None}, "Expected epsilon"),
        ({"inference_epsilon": -1.0}, "inference_epsilon"),
        ({"dimension": 4}, "dimension to be .*, got 4"),
        ({"query_dimension": 2}, "query_dimension to be .*, got 2"),
        ({"mechanism": "laplace"}, "mechanism"),
        ({"label_epsilon": 9.0}, "label_epsilon"),
        ({"calibration": "paper"}, "Add mechanism='gaussian'"),
        ({"projection": "labels"}, "labelled public text"),
        ({"position": "token", "mechanism": "gaussian"}, "fixed or coins for tokens"),
        ({"queries": 0}, "queries"),
    ):
        with pytest.raises(SettingError, match=said):
            LocalPrivacy(**{"epsilon": 8.0, **changes})  # type: ignore[arg-type]
    for kind in (UserSide, ServerSide):
        with pytest.raises(ModelError, match="protect='ldp'"):
            kind.load(tmp_path / "nothing")


def test_a_client_without_its_ledger_is_refused(finished: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    shutil.copytree(finished[0] / "client", tmp_path / "client", ignore=shutil.ignore_patterns("ledger*"))
    with pytest.raises(ModelError, match="the spent budget is unknown"):
        UserSide.load(tmp_path / "client")


def test_that_the_figure_is_a_sum_over_sentences_stands_beside_it() -> None:
    layer = LDPLayer("gaussian", 8, 2.0)
    protect = LocalLayer(layer, layer, whole_space(8), Sending(100, 10, 5))
    sent = SentOnce(protect, 7, None, Rng(0))
    said = sent.stated(Guarantee(70.0, 1e-3, "patient", Adjacency.REPLACE_ONE, "pld", assumptions=("one thing",)))
    assert re.search(
        r"weak guarantee\. It assumes: each sentence has epsilon [\d.]+, and those of up to 7 sentences of "
        r"one patient are added up; one thing;",
        said.sentence(),
    )
    assert sent.stated(said).assumptions == said.assumptions  # said once
