"""`discreet attack` as a user meets it: the table, the JSON, and what is refused."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from discreet.accounting.interpret import epsilon
from discreet.catalog import ATTACKS
from discreet.cli.attack_table import describe_guarantee, marked, sweep, truncated
from discreet.cli.main import main
from discreet.cli.options import parse_settings
from discreet.cli.output import one_line
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.data.corpus import Corpus
from discreet.experiment import AttackResult
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.protected import protection_of

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    toy_csv: Path,
    tiny_encoder: Callable[[str], Path],
) -> Say:
    """Return a function that runs the command on the toy rows with a tiny model."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object, model: bool = True, data: bool = True) -> tuple[int, str, str]:
        usual = ["--data", toy_csv] if data else []
        usual += ["--model", tiny_encoder("bert")] if model else []
        status = main(["attack", *map(str, [*usual, *arguments])])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_truth_and_guess_stand_side_by_side_in_eighty_columns(say: Say) -> None:
    status, out, err = say("--attack", "dager", "--examples", 2, "--noise-multiplier", 1, "--clip-norm", 0.5)
    assert (status, err) == (0, "")
    assert "truth" in out and "guess" in out and "heart was" in out
    assert "ROUGE-L" in out and "95% interval" in out and "chance" in out
    flat = " ".join(out.split())
    assert "Release: the gradient of 1 text at a fresh" in flat and re.search(r"all \d+ tensors, [\d,]+ numbers", flat)
    assert "dp-sgd (noise multiplier 1, clip norm 0.5" in flat
    assert "Certified: differential privacy with epsilon = 4.378 and delta = 1e-05" in flat
    assert "replace-one" in flat and max(map(len, out.splitlines())) <= 80


def test_only_the_first_words_of_texts_may_be_released(say: Say) -> None:
    status, out, _ = say("--attack", "embedding-rows", "--examples", 2, "--first-words", 2, "--json")
    assert status == 0
    assert all(len(example["truth"].split()) == 2 for example in json.loads(out)["examples"])
    status, out, _ = say("--attack", "embedding-rows", "--examples", 2, "--first-words", 2)
    assert "the gradient of at most 2 first words of 1 text at a fresh" in " ".join(out.split())


def test_a_long_name_of_the_score_is_folded_and_not_truncated(say: Say) -> None:
    status, out, _ = say("--attack", "embedding-rows", "--examples", 1)
    assert status == 0 and "words r" not in out.splitlines()[0]
    assert out.splitlines()[0].rstrip().endswith("words") and out.splitlines()[1].strip() == "read"


LONG = "the heart was dull and the knee was cold and the hand was warm and the plot was slow and calm all week"


def test_long_texts_are_cut_to_three_lines_unless_they_are_wanted_whole(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = [f"{LONG} {word} {number},{word}\n" for word in ("good", "bad") for number in range(60)]
    path.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    usual = ("--data", path, "--attack", "tag", "--examples", 1, "--seconds", 0.1)
    shown = say(*usual, data=False)[1].split("tag, n")[0]
    assert "…" in shown and len(shown.strip().splitlines()) == 4
    whole = say(*usual, "--whole-texts", data=False)[1].split("tag, n")[0]
    assert "…" not in whole and len(whole.strip().splitlines()) > 4


def test_a_cut_text_keeps_whole_words_and_its_colours() -> None:
    console = Console(width=80)
    text = truncated(marked("one two three four five six seven eight nine", "four"), 10, console)
    assert text.plain.split("\n") == ["one two", "three four", "five six …"]
    assert [text.plain[span.start : span.end] for span in text.spans if span.style] == ["four"]
    assert truncated(marked("one two", ""), 10, console).plain == "one two"
    assert truncated(marked("x" * 100, ""), 10, console).plain.endswith("xxxxxxxx …")


def test_it_says_what_the_time_went_into_and_when_a_limit_changes_nothing(say: Say) -> None:
    status, out, err = say("--attack", "embedding-rows", "--examples", 1, "--seconds", 5)
    assert status == 0 and "--seconds has no effect: embedding-rows does not search" in err
    assert re.search(r"[\d.]+ s to load, .*[\d.]+ s to attack\.$", " ".join(out.split()))
    status, out, err = say("--attack", "lamp", "--examples", 1, "--seconds", 0.1, "--json")
    found = json.loads(out)
    assert status == 0 and "has no effect" not in err
    assert 0 < found["preparing"] < found["seconds"] and found["loading"] > 0
    assert found["stopped_by_time_limit"] == 1
    assert "Stopped by the time limit: 1 search." in say("--attack", "lamp", "--examples", 1, "--seconds", 0.1)[1]


def test_json_is_one_object_and_nothing_else(say: Say) -> None:
    status, out, err = say("--attack", "embedding-rows", "--examples", 4, "--batch-size", 2, "--json")
    found = json.loads(out)
    assert status == 0 and err.count("\n") == 2
    assert {"attack", "n", "leakage", "examples", "release", "guarantee", "seconds"} <= set(found)
    assert (found["attack"], found["n"], found["guarantee"]) == ("embedding-rows", 2, None)
    assert set(found["leakage"][0]) == {"metric", "value", "low", "high", "n", "chance"}
    assert found["leakage"][0]["metric"] == "bag_recall" and found["leakage"][0]["value"] == 1.0
    assert {"truth", "guess"} <= set(found["examples"][0])
    assert found["release"]["batch_size"] == 2 and found["release"]["protection"] is None


def test_the_seed_of_the_noise_makes_an_estimate_of_the_epsilon(say: Say) -> None:
    arguments = ("--attack", "embedding-rows", "--examples", 1, "--protect", "dp-sgd", "--epsilon", 8, "--json")
    certified = json.loads(say(*arguments)[1])["guarantee"]
    assert certified["certified"] and certified["epsilon"] == pytest.approx(8, rel=1e-3)
    first, second = (json.loads(say(*arguments, "--noise-seed", 3)[1]) for _ in range(2))
    assert not first["guarantee"]["certified"] and "whoever knows it" in first["guarantee"]["reason"]
    assert first["examples"] == second["examples"]


def test_one_of_n_sweeps_the_noise_and_shows_the_bound(say: Say) -> None:
    status, out, _ = say("--attack", "one-of-n", "--candidates", 6, "--noise-multiplier", "0.1,1", "--json")
    found = json.loads(out)
    assert status == 0 and len(found["sweep"]) == 2 and found["n"] == 20_000
    for one in found["sweep"]:
        assert one["leakage"][0]["low"] <= one["bound"] <= 1 and one["guarantee"]["epsilon"] > 0
    status, out, _ = say("--attack", "one-of-n", "--candidates", 6, "--steps", 3)
    assert status == 0 and "noise multiplier" in out and "bound" in out and "3 times" in " ".join(out.split())
    assert out.count("0.1667") == 10  # the usual strengths, each beside chance
    status, out, _ = say("--attack", "one-of-n", "--candidates", 6, "--kappa", 10, "--kappa", 1000)
    assert status == 0 and "kappa" in out
    status, out, _ = say("--attack", "one-of-n", "--candidates", 6, "--protect", "none", "--json")
    plain = json.loads(out)
    assert plain["leakage"][0]["value"] == 1.0 and plain["bound"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attack", "dagger"], "Did you mean 'dager'"),
        (["--attack", "dager", "--set", "stepps=3"], "Did you mean 'steps'"),
        (["--attack", "dager", "--set", "steps"], "NAME=VALUE, got"),
        (["--attack", "dager", "--seconds", "0"], "Expected --seconds to be > 0"),
        (["--attack", "dager", "--examples", "500"], "Expected --examples to be at most"),
        (["--attack", "dager", "--examples", "0"], "Expected --examples to be an integer"),
        (["--attack", "dager", "--batch-size", "0"], "Expected --batch-size to be an integer"),
        (["--attack", "dager", "--examples", "3", "--batch-size", "2"], "a multiple of --batch-size 2"),
        (["--attack", "dager", "--split", "trian"], "Did you mean 'train'"),
        (["--attack", "dager", "--device", "cuda"], "no usable GPU"),
        (["--attack", "dager", "--threads", "0"], "Expected --threads to be"),
        (["--attack", "dager", "--max-words", "1"], "texts of at most 1 words"),
        (["--attack", "dager", "--first-words", "0"], "Expected --first-words to be an integer"),
        (["--attack", "rss", "--first-words", "2"], "left out except for attacks on a gradient"),
        (["--attack", "dager", "--examples", "8", "--batch-size", "8"], "fewer than 16 tokens for DAGER"),
        (["--attack", "dager", "--train", "head"], "A head alone"),
        (["--attack", "dager", "--epsilon", "8"], "used with --protect"),
        (["--attack", "dager", "--protect", "dp-sdg", "--epsilon", "8"], "Did you mean 'dp-sgd'"),
        (["--attack", "dager", "--noise-multiplier", "1", "--kappa", "3"], "one of --noise-multiplier, --kappa"),
        (["--attack", "dager", "--noise-multiplier", "much"], "Expected --noise-multiplier to be a number"),
        (["--attack", "dager", "--noise-multiplier", "-1"], "Expected --noise-multiplier to be >= 0"),
        (["--attack", "dager", "--metric", "rogue_l"], "Did you mean 'rouge_l'"),
        (["--attack", "one-of-n", "--batch-size", "2", "--examples", "2"], "Expected --batch-size to be 1 for 1-of-n"),
        (["--attack", "one-of-n", "--candidates", "1"], "Expected --candidates to be"),
        (["--attack", "one-of-n", "--candidates", "5000"], "attack fewer (--candidates), or use another --split"),
        (["--attack", "one-of-n", "--delta", "0", "--noise-multiplier", "1"], "Expected --delta to be in (0, 1)"),
        (["no/such/run", "--attack", "dager"], "Expected a run folder at"),
        (["--attack", "one-of-n", "--protect", "texthide"], "These fit: rss, reprecon, instance, blind, inversion"),
        (["--attack", "dager", "--protect", "ldp", "--epsilon", "8", "--train", "head"], "ldp releases sentence"),
        (["--attack", "rss", "--protect", "dp-sgd", "--epsilon", "8"], "--protect dp-sgd … --attack one-of-n`"),
        (["--attack", "dager", "--protect", "texthide"], "or mix fewer sentences (--protect-set mix=…)"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_a_sentence(say: Say, arguments: list[str], words: str) -> None:
    status, out, err = say(*arguments)
    assert status == 2 and not out.strip()
    assert words in err and "Traceback" not in err and err.count("\n") <= 2


def test_bounds_and_epsilons_are_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    promise = Guarantee(2.3421, 1e-5, "record", Adjacency.ADD_REMOVE, "pld")
    columns = {"add/remove": 2.3421, "replace-one": 4.56721}
    facts = {"kind": "gradient", "steps": 1, "batch_size": 1, "model": "a model", "parameters": "all", "known": []}
    result = AttackResult(
        attack="one-of-n", leakages=(Leakage("identified", 0.1, 0.09, 0.11, 100, 0.1),),
        release={**facts, "protection": None},
        guarantee=promise, epsilon_by_adjacency=columns, seconds=1.0, bound=0.12341,
    )  # fmt: skip
    sweep([result], ["1"], "noise multiplier", Console(width=200))
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.1235" in shown and "2.343" in shown and "4.568 under replace-one" in shown
    assert "0.1234" not in shown and "2.342 " not in shown


def test_an_estimate_is_one_under_every_adjacency() -> None:
    promise = Guarantee(2.0, 1e-5, "record", Adjacency.ADD_REMOVE, "pld", certified=False, reason="its seed was given")
    columns = {"add/remove": 2.0, "replace-one": 4.0}
    found = AttackResult(
        attack="lamp", leakages=(), release={}, guarantee=promise, epsilon_by_adjacency=columns, seconds=1.0
    )
    assert describe_guarantee(found).endswith("Estimates of epsilon are 4 under replace-one.")
    proven = dataclasses.replace(found, guarantee=dataclasses.replace(promise, certified=True, reason=None))
    assert describe_guarantee(proven).endswith("Epsilon is 4 under replace-one.")


def test_help_names_every_attack(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in shown for name in ATTACKS)
    gradient, vectors = shown.index("Needs a gradient:"), shown.index("Needs vectors:")
    assert gradient < shown.index(" dager") < vectors < shown.index(" rss")


def test_hostile_text_stays_text() -> None:
    assert one_line("a\x1b[31mb\n\u202e c") == "a\\x1b[31mb \\u202e c"
    drawn = marked("[bold]the Heart the\x07", "the heart")
    assert drawn.plain == "[bold]the Heart the\\x07"
    assert [drawn.plain[span.start : span.end] for span in drawn.spans] == ["Heart"]


def test_values_are_read_as_toml_or_as_words() -> None:
    assert parse_settings(["a=1", "b=true", "c=x y", "d-e=[1, 2]"], "--set") == {
        "a": 1, "b": True, "c": "x y", "d_e": [1, 2],
    }  # fmt: skip


def test_an_epsilon_of_one_release_is_solved_for(tiny_encoder: Callable[[str], Path]) -> None:
    corpus = Corpus("toy", ("a", "b"), labels=(0, 1))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")))
    protect = protection_of("dp-sgd", model, {"epsilon": 4.377}, delta=1e-5)
    assert isinstance(protect, DPSGD) and protect.noise_multiplier == pytest.approx(
        1, abs=2e-3
    )  # nothing is gained by sampling
    turned = protection_of("dir-dp-sgd", model, {"epsilon": 4.0}, delta=1e-5)
    assert isinstance(turned, DirDPSGD) and turned.concentration > 1
    assert 3.9 < epsilon(turned.event, 1e-5, turned.adjacency) <= 4
    with pytest.raises(SettingError, match="kappa"):
        protection_of("dir-dp-sgd", model, {}, delta=1e-5)


def test_one_of_n_on_a_run_that_was_hidden_names_what_fits_and_how_to_call_it(
    say: Say, tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", toy_csv, "--model", tiny_encoder("bert"), "--protect", "texthide", "--epochs", 1]
    assert main([*map(str, train), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    status, _, err = say(tmp_path / "run", "--attack", "one-of-n", model=False, data=False)
    assert status == 2 and "mix" not in err
    assert "texthide releases sentence vectors" in err and "`discreet attack RUN --attack rss`" in err
    names = err.partition("These fit: ")[2].partition(";")[0].split(", ")
    for name in names:
        assert say(tmp_path / "run", "--attack", name, "--examples", 4, model=False, data=False)[0] == 0, name


def test_a_run_is_attacked_by_what_fits_it_on_its_training_rows(
    say: Say, tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--epochs", 1]
    assert main([*map(str, train), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    run = (tmp_path / "run", "--candidates", 8, "--draws", 100)
    status, out, err = say(*run, "--json", model=False, data=False)
    assert status == 0 and json.loads(out)["attack"] == "one-of-n"
    assert "Attack: one-of-n, which fits this run" in err and "for their owner, not for release" in err
    status, _, err = say(tmp_path / "run", "--attack", "dager", model=False, data=False)
    assert status == 2 and "These fit: one-of-n; for example `discreet attack RUN --attack one-of-n`" in err


def test_the_share_of_unknown_tokens_is_said(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"我被重复收费了 {i},{i % 2}\n" for i in range(60)), encoding="utf-8")
    status, out, err = say("--data", path, "--attack", "embedding-rows", "--examples", 1, "--json", data=False)
    assert status == 0 and json.loads(out)["unknown_share"] > 0.2
    assert "of the tokens are unknown to" in err


def test_it_is_said_what_rouge_does_not_count(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"我被重复收费了 {i},{i % 2}\n" for i in range(60)), encoding="utf-8")
    told = "ROUGE counts only words of the letters a-z and digits"
    assert told in say("--data", path, "--attack", "dager", "--examples", 1, data=False)[2]
    assert told not in say("--attack", "dager", "--examples", 1)[2]


def test_vectors_of_a_run_are_attacked_at_its_own_delta_and_other_noise_is_told(
    say: Say, tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", toy_csv, "--model", tiny_encoder("bert"), "--protect", "dp-ie", "--epsilon", 8, "--epochs", 1]
    train += ["--delta", 1e-4]
    assert main([*map(str, train), "--out", str(tmp_path / "run"), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["guarantee"]["delta"]
    status, out, err = say(tmp_path / "run", "--examples", 4, "--json", model=False, data=False)
    assert status == 0 and json.loads(out)["guarantee"]["delta"] == pytest.approx(own) != 1e-5
    assert "The noise of dp-ie is computed for the texts of this release." in err
    status, out, err = say(tmp_path / "run", "--examples", 4, "--json", "--delta", 1e-6, model=False, data=False)
    assert status == 0 and json.loads(out)["guarantee"]["delta"] == 1e-6
