"""A release is attacked, end to end: from a corpus to what was read, with a fresh model and with a trained one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doors.edits import restated

from discreet.attacks.base import Attack
from discreet.attacks.identification import OneOfN
from discreet.attacks.matching.lamp_tag_dlg import Lamp
from discreet.attacks.matching.word_draws import WordDraws
from discreet.attacks.representation.blind import BlindReconstruction
from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.attacks.representation.similarity import Similarity
from discreet.attacks.rows import PositionRows
from discreet.attacks.span.dager import Dager
from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.experiment import AttackRequest, Example, Scene, SceneRequest, attack_once, load_scene
from discreet.experiment.attack.reconstruction import knowledge
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD

TEXTS = ("irena rybak called", "a record of 33419", "the plan was a scan", "phone 555 0133", "a sharp pain", "rest")
CORPUS = Corpus("clinic", TEXTS, labels=(0, 1, 0, 1, 0, 1), splits=("validation",) * 4 + ("train",) * 2)


@pytest.fixture(scope="module")
def minilm() -> Scene:
    return Scene.of(CORPUS, Classifier.build(CORPUS, rng=Rng(0), dropout=0.0).eval())


def test_a_plain_gradient_gives_its_text_away_and_noise_keeps_it(minilm: Scene) -> None:
    seen: list[Example] = []
    request = AttackRequest(Dager(), name="dager", examples=4, batch_size=2)
    plain = attack_once(request, minilm, watch=seen.append)
    assert {example.guess for example in plain.examples} == set(TEXTS[:4])
    assert plain.leakages[0].metric == "rouge_l" and plain.leakages[0].value == 1.0 and plain.n == 4
    assert plain.guarantee is None and plain.release["protection"] is None and plain.finished
    assert tuple(seen) == plain.examples and [example.batch for example in seen] == [0, 0, 1, 1]
    for protect in (DPSGD(1.0, clip_norm=1.0), DirDPSGD.for_model(minilm.model, 1000.0)):
        kept = attack_once(replace(request, protect=protect), minilm)
        assert [example.truth for example in kept.examples] == [example.truth for example in plain.examples]
        assert kept.leakages[0].value <= 0.1
        assert kept.guarantee is not None and kept.guarantee.certified
        assert kept.guarantee.epsilon == kept.epsilon_by_adjacency[kept.guarantee.adjacency.value]
    json.dumps(plain.as_dict(), allow_nan=False)


def test_the_first_words_alone_can_be_attacked_and_stay_unknown_to_the_attacker(minilm: Scene) -> None:
    request = AttackRequest(Dager(), examples=4, first_words=2)
    found = attack_once(request, minilm)
    assert {example.guess for example in found.examples} == {" ".join(text.split()[:2]) for text in TEXTS[:4]}
    with pytest.raises(SettingError, match="first_words"):
        attack_once(AttackRequest(OneOfN(), first_words=2), minilm)
    with pytest.raises(SettingError, match="attacks on a gradient"):
        AttackRequest(Similarity(), first_words=2)


def test_an_attack_on_one_gradient_takes_no_number_of_releases() -> None:
    with pytest.raises(SettingError, match=r"steps to be left out for the attack dager, got 2"):
        AttackRequest(Dager(), steps=2)
    assert AttackRequest(OneOfN(), steps=2).steps == AttackRequest(Similarity(), steps=2).steps == 2


def test_an_attack_that_is_stopped_keeps_what_it_read(minilm: Scene) -> None:
    seen: list[Example] = []
    request = AttackRequest(Dager(), examples=4)
    half = attack_once(request, minilm, watch=seen.append, should_stop=lambda: len(seen) >= 2)
    assert (half.n, half.finished, half.attack) == (2, False, "dager")


def test_the_same_seed_attacks_the_same_texts_and_repeats_itself(minilm: Scene) -> None:
    request = AttackRequest(Dager(), protect=DPSGD(1e-7, clip_norm=1.0), examples=2, seed=5, noise_seed=1)
    first, second = (attack_once(request, minilm) for _ in range(2))
    assert first.examples == second.examples and first.leakages == second.leakages
    assert first.guarantee is not None and not first.guarantee.certified


def test_what_the_attacker_reads_publicly_is_not_what_is_attacked(minilm: Scene) -> None:
    assert set(minilm.public_without(TEXTS[:2])) == set(TEXTS[2:])
    assert minilm.public_without(["  IRENA   rybak called"]) == TEXTS[1:]
    with pytest.raises(SettingError, match="at most 4"):
        attack_once(AttackRequest(OneOfN(), candidates=5), minilm)


def test_a_run_is_attacked_as_it_was_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    out = tmp_path / "run"
    trained = ["train", toy_csv, "--model", tiny_encoder("bert"), "--out", out, "--epochs", 1, "--device", "cpu"]
    private = ["--protect", "dp-sgd", "--epsilon", 8, "--batch-size", 20, "--train", "all", "--json"]
    assert main([str(a) for a in [*trained, *private]]) == 0
    done = json.loads(capsys.readouterr().out)
    attack = ["attack", out, "--attack", "dager", "--examples", 1, "--json"]
    assert main([str(a) for a in attack]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert "like the run's training" in shown.err
    noise = found["release"]["protection"]["noise_multiplier"]
    assert noise == done["protection"]["noise_multiplier"]
    # the epsilon of one release, with nothing hidden by sampling, is not that of the training
    assert found["guarantee"]["epsilon"] != done["guarantee"]["epsilon"]
    assert found["release"]["model"] == f"the model of {out}"
    assert main([str(a) for a in [*attack, "--protect", "none", "--split", "train"]]) == 0
    assert json.loads(capsys.readouterr().out)["guarantee"] is None


def test_a_scene_is_loaded_as_it_is_asked_for(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> None:
    asked = SceneRequest(
        str(toy_csv), model=ModelSettings(encoder=str(tiny_encoder("bert"))), split="train", device="cpu"
    )
    scene = load_scene(asked)
    assert set(scene.rows.splits) == {"train"} and scene.origin.startswith("a fresh ")
    assert load_scene(replace(asked, public="notes")).public != scene.public


@pytest.mark.parametrize("name", ["texthide", "dp-ie", "ldp"])
def test_vectors_are_attacked_as_they_leave(name: str, minilm: Scene) -> None:
    """Each output is compared with the row that weighs most in it, in the order in which outputs leave."""
    from discreet.attacks.representation.similarity import Similarity
    from discreet.releases.protected import protection_of

    # With public vectors ldp does not encode 2,000 sentences to find its projection.
    ldp = {"epsilon": 1e5, "public": "notes"}
    weak = {"texthide": {"mix": 1, "masks": 0}, "dp-ie": {"epsilon": 1e5}, "ldp": ldp}[name]
    public = torch.randn(500, minilm.model.width, generator=torch.Generator().manual_seed(0))
    protect = protection_of(name, minilm.model, weak, delta=1e-5, batch_size=4, public=lambda: (public, None))
    request = AttackRequest(Similarity(), protect, "rss", examples=4, batch_size=4)
    found = attack_once(request, minilm)
    assert found.release["kind"] == "representation" and found.release["vectors"] == found.n == 4
    assert {example.truth for example in found.examples} == set(TEXTS[:4])
    assert found.leakages[0].metric == "exact_match" and found.leakages[0].value == 1.0
    assert found.guarantee is not None and found.guarantee.exists == (name != "texthide")


@pytest.mark.parametrize("attack", [BlindReconstruction(turns=1), EmbeddingInversion(epochs=1, least=1)])
def test_public_text_is_known_in_the_coordinates_of_the_release(attack: Attack, minilm: Scene) -> None:
    from discreet.releases.protected import protection_of

    public = torch.randn(40, minilm.model.width, generator=torch.Generator().manual_seed(0))
    asked = {"epsilon": 100.0, "dimension": 8, "public": "notes"}
    protect = protection_of("dp-ie", minilm.model, asked, delta=1e-5, batch_size=4, public=lambda: (public, None))
    scene = replace(minilm, public=tuple(f"{text} {number}" for text in TEXTS for number in range(10)))
    found = attack_once(AttackRequest(attack, protect, examples=4, batch_size=4), scene)
    assert found.release["width"] == 8 and found.n == 4


def test_the_gradient_of_an_encoder_is_not_covered_by_noise_on_its_output(minilm: Scene) -> None:
    from discreet.releases.protected import protection_of

    protect = protection_of("dp-ie", minilm.model, {"epsilon": 1.0}, delta=1e-5, batch_size=1)
    found = attack_once(AttackRequest(Dager(), protect, examples=1), minilm)
    assert found.leakages[0].value == 1.0
    assert found.guarantee is not None and not found.guarantee.exists
    assert "gradient of the encoder" in found.guarantee.sentence()


def test_a_rewritten_text_costs_all_its_words_and_the_longest_text_counts(minilm: Scene) -> None:
    from discreet.attacks.rows import EmbeddingRows
    from discreet.protections.words.swap import WordSwap
    from discreet.protections.words.table import WordTable

    swap = WordSwap(WordTable.of_encoder("minilm"), 10.0)
    found = attack_once(AttackRequest(EmbeddingRows(), protect=swap, examples=4), minilm)
    assert found.guarantee is not None
    most = max(len(swap.table.split(text)) for text in TEXTS[:4])  # one word each would be 10, and the first text less
    assert found.guarantee.epsilon == pytest.approx(10.0 * most)
    assert dict(found.epsilon_by_adjacency) == {"replace-one": pytest.approx(10.0 * most)}


@pytest.mark.parametrize("attack", [Lamp(), WordDraws(), PositionRows()])
def test_a_language_model_is_fitted_once_and_before_the_search(minilm: Scene, attack: Attack) -> None:
    request = AttackRequest(attack, examples=1)
    first, second = (knowledge(request, minilm, minilm.model, CORPUS.take([row])) for row in (0, 0))
    assert first.extra["prior"] is second.extra["prior"]
    assert "prior" not in knowledge(replace(request, attack=Dager()), minilm, minilm.model, CORPUS.take([0])).extra


def test_too_short_a_limit_on_words_is_refused_with_the_length_that_there_is(minilm: Scene) -> None:
    with pytest.raises(SettingError, match=r"shortest has 3; allow longer ones \(max_words\), or use another split"):
        minilm.draw(1, Rng(0), max_words=2)
    with pytest.raises(
        SettingError,
        match=r"of at most 3 words; allow longer ones \(max_words\), attack fewer \(examples\), or use an",
    ):
        minilm.draw(3, Rng(0), max_words=3)


def test_all_updates_of_a_run_are_attacked_under_the_guarantee_of_the_run(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", toy_csv, "--model", tiny_encoder("bert"), "--out", out, "--epochs", 2, "--protect", "dp-sgd"]
    assert main([str(word) for word in [*words, "--epsilon", 8, "--batch-size", 20, "--device", "cpu", "--json"]]) == 0
    trained = json.loads(capsys.readouterr().out)["guarantee"]
    assert main(["attack", str(out), "--attack", "one-of-n", "--candidates", "4", "--draws", "500", "--json"]) == 0
    attacked = json.loads(capsys.readouterr().out)
    promise = (attacked.get("results") or [attacked])[0]["guarantee"]
    assert (promise["delta"], promise["unit"]) == (trained["delta"], trained["unit"])
    assert promise["epsilon"] == pytest.approx(trained["epsilon"], rel=1e-3)


def test_a_run_with_a_population_is_attacked_on_all_its_updates_with_its_caveats(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", toy_csv, "--model", tiny_encoder("bert"), "--out", out, "--epochs", 2, "--protect", "dp-sgd"]
    more = ["--epsilon", 8, "--batch-size", 20, "--population", 100, "--classes", "ward,clinic", "--json"]
    assert main([str(word) for word in [*words, *more]]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    attack = ["attack", str(out), "--attack", "one-of-n", "--candidates", "4", "--draws", "500", "--json"]

    def attacked() -> dict[str, Any]:
        assert main(attack) == 0
        told = json.loads(capsys.readouterr().out)
        return (told.get("results") or [told])[0]

    assert attacked()["release"]["steps"] == steps
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    metrics["guarantee"] |= {"certified": False, "caveats": ["unsteady-kernels"]}
    restated(out, metrics)
    doubted = attacked()
    assert not doubted["guarantee"]["certified"] and doubted.get("bound") is None
