"""What a trial sets beside its measurements is a proof, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.core.errors import DataError, SettingError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.study.grid import Planned
from discreet.study.trial import of_the_setting, run_trial


@pytest.mark.parametrize(("train", "proven"), [("head", True), ("all", False)])
def test_an_estimate_is_not_drawn_as_a_bound(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], train: str, proven: bool
) -> None:
    """Noise on vectors does not pay for an encoder that learned from private text: a member may be told by more."""
    settings = {
        "data": {"source": str(toy_csv)},
        "model": {"encoder": str(tiny_encoder("bert")), "train": train},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": {"name": "dp-ie", "epsilon": 2.0},
    }
    trial = run_trial(Planned("a", settings, 0))
    assert trial.guarantee is not None and trial.guarantee.certified is proven
    assert (trial.details["roc"]["bound"] is not None) is proven


def test_what_could_not_be_run_is_said_in_the_study_s_own_words(
    toy_csv: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    settings = {
        "data": {"source": str(toy_csv)},
        "model": {"encoder": str(tiny_encoder("bert")), "train": "head"},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": {"name": "texthide", "mix": 4},
        "attack": [{"name": "rss", "examples": 4}],
    }
    why = run_trial(Planned("a", settings, 0)).details["not_attacked"]["rss"]
    assert "Use larger batches (batch_size), or mix fewer sentences (mix)" in why
    settings["training"] = {"epochs": 1, "batch_size": 2}
    with pytest.raises(SettingError, match=r"Use larger batches \(batch_size\)"):
        run_trial(Planned("a", settings, 0))


def test_a_cache_that_cannot_be_written_costs_time_and_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inner products are computed, not lost, where the cache lies below something that is no folder."""
    import numpy as np

    from discreet.data.corpus import Corpus
    from discreet.experiment.attack.scene import Scene
    from discreet.study import trial

    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "file" / "cache"))
    computed, texts = np.eye(2), Corpus("two", ("a", "b"))

    def gram(self: Scene, candidates: Corpus) -> np.ndarray:  # type: ignore[type-arg]
        self.cache[("gram", candidates.texts, None, None, None)] = computed
        return computed

    monkeypatch.setattr(Scene, "gram", gram)
    monkeypatch.setattr(trial, "_digest", lambda model, text: "0")
    scene = trial.SharedScene.__new__(trial.SharedScene)
    object.__setattr__(scene, "cache", {})
    object.__setattr__(scene, "model", None)
    assert scene.gram(texts) is computed


@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_canaries_are_planted_in_a_trial_and_their_exposure_is_measured(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], epsilon: float | None
) -> None:
    settings = {
        "data": {"source": str(toy_csv), "classes": ["clinic", "ward"]},
        "model": {"encoder": str(tiny_encoder("bert")), "train": "head"},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": {"name": "none"} if epsilon is None else {"name": "dp-sgd", "epsilon": epsilon},
        "attack": [{"name": "exposure"}],
        "canaries": {"count": 3, "copies": [1, 4], "digits": 2},
    }
    trial = run_trial(Planned("a", settings, 0))
    leakage = {one.metric: one for one in trial.leakages}["exposure/exposure"]
    assert leakage.n == 6 and trial.details["scopes"]["exposure/exposure"] == "model"
    table = trial.details["attacks"]["exposure"]["details"]["exposure"]
    assert [row["copies"] for row in table] == [1, 4]
    assert all((row["bound"] is None) is (epsilon is None) for row in table)
    assert ("exposure/exposure" in trial.details["bounds"]) is (epsilon is not None)
    assert run_trial(Planned("a", settings, 0)).leakages == trial.leakages


@pytest.mark.parametrize("protection", [{"name": "none"}, {"name": "dp-sgd", "epsilon": 8.0}])
def test_a_study_trains_language_models_with_adapters(
    toy_csv: Path, tiny_causal: Callable[[str], Path], protection: dict[str, object]
) -> None:
    settings = {
        "data": {"source": str(toy_csv), "task": "unlabelled"},
        "model": {"encoder": str(tiny_causal("llama")), "train": "lora-2"},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": protection,
        "attack": [{"name": "loss", "members": 8}],
    }
    trial = run_trial(Planned("a", settings, 0))
    assert next(iter(trial.utility)) == "token_accuracy" and trial.utility["perplexity"] > 1
    low, high = trial.details["intervals"]["perplexity"]
    assert low <= trial.utility["perplexity"] <= high and trial.details["baselines"]["perplexity"] > 100
    assert trial.details["trained"] == "lora-2" and {one.metric for one in trial.leakages} >= {"loss/auc"}
    assert (trial.guarantee is not None and trial.guarantee.certified) is (protection["name"] == "dp-sgd")


def test_a_study_reads_pairs_like_train(tmp_path: Path, tiny_encoder: Callable[[str], Path]) -> None:
    words = ["knee", "heart", "lung", "ankle", "fever", "cough"]
    lines = [f"a {words[i % 6]} {i},the {words[(i * i) % 6]},{i % 2}" for i in range(60)]
    (tmp_path / "pairs.csv").write_text("text,second,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "data": {"source": str(tmp_path / "pairs.csv"), "text_pair": "second"},
        "model": {"encoder": str(tiny_encoder("bert"))},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": {"name": "dp-sgd", "epsilon": 8.0},
    }
    trial = run_trial(Planned("a", settings, 0))
    assert trial.details["trained"] == "head" and "accuracy" in trial.utility


def test_all_updates_of_a_training_are_as_certain_as_the_training(
    toy_csv: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    """Class names that are read from private labels make the figure of one release and of all of them an estimate."""
    settings = {
        "data": {"source": str(toy_csv)},
        "model": {"encoder": str(tiny_encoder("bert")), "train": "head"},
        "training": {"epochs": 1, "batch_size": 16},
        "protect": {"name": "dp-sgd", "epsilon": 8.0},
        "attack": [{"name": "one-of-n", "candidates": 4, "draws": 500}],
    }
    for names, certified in ((None, False), (["clinic", "ward"], True)):
        settings["data"] = {"source": str(toy_csv), "classes": names}
        trial = run_trial(Planned("a", settings, 0))
        stated = trial.details["attacks"]["one-of-n"]["guarantee"]
        assert trial.guarantee is not None and trial.guarantee.certified is certified
        assert stated["certified"] is certified and ("private-classes" in stated["caveats"]) is not certified
        assert "fixed-seed" not in stated["caveats"]
        assert ("one-of-n/identified" in trial.details["bounds"]) is certified


@pytest.mark.parametrize("protection", [{"name": "none"}, {"name": "dp-sgd", "epsilon": 8.0}])
def test_a_study_without_held_out_rows_fails_before_it_trains(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, protection: dict[str, object]
) -> None:
    from discreet.study import Study
    from discreet.study import trial as trials

    settings = {
        "data": {"source": str(toy_csv), "validation": "0"},
        "model": {"encoder": str(tiny_encoder("bert")), "train": "head"},
        "protect": protection,
    }
    monkeypatch.setattr(trials, "train_once", lambda *a, **k: pytest.fail("it trained"))
    with pytest.raises(DataError, match=r"held-out rows.*data\.validation"):
        run_trial(Planned("a", settings, 0))
    study = Study("a", settings["data"], ({"name": "none"},))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="held-out rows"):
        trials.check_rows(study, trials.corpus_of(study.data))


def test_the_attacked_model_reads_pairs_as_the_trained_one(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.study import trial as trials
    from discreet.training import plan

    encoder = str(tiny_encoder("bert"))
    monkeypatch.setattr(plan, "MINILM", encoder)  # the encoder whose pairs are read separately under a protection
    words = ["knee", "heart", "lung", "ankle", "fever", "cough"]
    lines = [f"a {words[i % 6]} {i},the {words[(i * i) % 6]},{i % 2}" for i in range(60)]
    (tmp_path / "pairs.csv").write_text("text,second,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "data": {"source": str(tmp_path / "pairs.csv"), "text_pair": "second"},
        "model": {"encoder": encoder},
        "protect": {"name": "dp-sgd", "epsilon": 8.0},
    }
    trained = trials.training_request(settings, trials.corpus_of(settings["data"]), 0).model
    for train in ("head", "all"):
        scene = trials.scene_of({**settings, "release": {"train": train}}, 0, "gradient")
        assert scene.model.settings.pairs == trained.pairs == "separate"
        assert scene.model.settings.head == trained.head and scene.model.settings.train == train


def test_the_seed_of_a_trial_is_no_caveat_of_its_setting() -> None:
    both = Guarantee(3.0, 1e-5, "row", "zero-out", "pld").with_caveats({Caveat.FIXED_SEED, Caveat.PRIVATE_CLASSES})
    stated = of_the_setting(both)
    assert stated.caveats == {Caveat.PRIVATE_CLASSES} and not stated.certified
    assert stated.reason == Caveat.PRIVATE_CLASSES.sentence
    own = Guarantee(
        3.0,
        1e-5,
        "row",
        "zero-out",
        "paper",
        False,
        reason="it is 9 in truth",
        caveats=frozenset({"paper-calibration"}),
    )
    assert of_the_setting(own.with_caveats({Caveat.FIXED_SEED})).reason == "it is 9 in truth"
