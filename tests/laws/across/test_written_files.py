"""What a protected run writes: with one unit changed and its identity kept, every file but the weights is the same.

A certificate is about all that is handed on, not about the weights alone: settings, card, metrics, the ledger, the
names of the files. Each protection is trained on a corpus and on its neighbour, and the two folders are compared byte
by byte. Left out are the weights, and in the ledger what is random (the name of the file, the checks that follow from
it, and the names of spends, which hold the secret). Utility is held still: it is computed from the weights that are
released and from held-out rows, which are not protected.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from discreet import catalog
from discreet.catalog import protection
from discreet.core.errors import DataError
from discreet.core.files import save_tensors
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, keep_share, unit_numbers
from discreet.data.samplers import Poisson
from discreet.data.sources import Columns, TextSource, load
from discreet.experiment import RunOptions, RunRequest, train_once
from discreet.experiment import run as story
from discreet.models.classifier import ModelSettings
from discreet.models.settings import TrainSettings

WEIGHTS = {"model.safetensors", "client/path.safetensors", "server/head.safetensors"}
WORDS = ("good", "bad", "calm", "sharp", "dull", "bright", "slow", "quick")
# Each protection with a setting that trains in a moment, and whether units of several rows may be named.
PROTECTIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "dp-sgd": ({"epsilon": 3.0}, True),
    "dir-dp-sgd": ({"kappa": 20.0}, True),
    "texthide": ({"mix": 2}, False),
    "dp-ie": ({"epsilon": 20.0}, False),
    "ldp": ({"epsilon": 8.0, "projection": "whole"}, False),
    "santext": ({"epsilon_per_word": 3.0}, False),
    "santext+": ({"epsilon_per_word": 3.0}, False),
    "word-noise": ({"epsilon_per_word": 3.0}, False),
}
Rows = list[tuple[str, str, str]]


def corpus(per_unit: int) -> Rows:
    """Return 120 rows of ward and clinic, each with its owner; the owner of row i has every 120 / per_unit-th row."""
    owners = 120 // per_unit
    texts = [f"the {('heart', 'knee')[i % 2]} was {WORDS[i % 8]} and {WORDS[(i // 8) % 8]} {i}" for i in range(120)]
    return [(text, ("ward", "clinic")[i % 2], f"p{i % owners:03d}") for i, text in enumerate(texts)]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("text,label,who\n" + "".join(f"{','.join(row)}\n" for row in rows), encoding="utf-8")
    return path


def victim(path: Path, unit: str | None) -> str:
    """Return who is changed: the owner of the first rows that are trained on."""
    train = load(path, Columns(unit=unit)).split("train")
    return next(who for text, _, who in corpus(1) if text in train.texts) if unit is None else train.unit_names[0]


def changed(rows: Rows, who: str, text: str) -> Rows:
    """Return the rows with another text and the other label for one owner."""
    return [(text, "ward" if mark == "clinic" else "clinic", w) if w == who else (t, mark, w) for t, mark, w in rows]


def request(name: str, path: Path, encoder: Path, unit: str | None, **more: Any) -> RunRequest:
    settings = dict(PROTECTIONS[name][0])
    if name == "santext+":
        sensitive = path.with_name("sensitive.txt")
        sensitive.write_text("heart\nknee\n", encoding="utf-8")
        settings["sensitive"] = str(sensitive)
    asked = {key: more.pop(key) for key in ("population", "noise_seed", "seed") if key in more}
    return RunRequest(
        TextSource(str(path), unit=unit, **more),
        ModelSettings(encoder=str(encoder), train="head", dropout=0.0 if "sgd" in name else None),
        TrainSettings(epochs=2.0),
        protect=protection(name, settings),
        **asked,
    )


def written(out: Path) -> dict[str, bytes]:
    """Return every file of a run but its weights; of the ledgers, what is not random."""
    found: dict[str, bytes] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = path.relative_to(out).as_posix()
        if name in WEIGHTS:
            with safe_open(path, framework="pt") as file:
                shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
                found[name] = repr((shapes, sorted((file.metadata() or {}).items()))).encode()
        elif name.endswith("ledger.jsonl"):
            found[name] = "\n".join(map(without_randomness, path.read_text(encoding="utf-8").splitlines())).encode()
        elif name == "metrics.json":  # whose digests are those of the other files, the weights among them
            values = json.loads(path.read_text(encoding="utf-8"))
            assert values.pop("digests")
            found[name] = json.dumps(values).encode()
        else:
            found[name] = path.read_bytes()
    return found


def without_randomness(line: str) -> str:
    value = json.loads(line)
    if isinstance(value, dict):
        return json.dumps({key: each for key, each in value.items() if key not in {"name", "check"}})
    spent, *rest = value
    assert isinstance(spent, str) and isinstance(rest[-1], str)
    run, _, step = spent.partition(" ")
    assert len(run) == 16 and int(run, 16) >= 0
    return json.dumps([step, *rest[:-1]])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, bytes]]:
    """Return a function that trains on rows, always under the same names, and gives what was written."""
    assess = story.assess
    still: list[Any] = []

    def same(*words: Any, **more: Any) -> Any:
        still.append(assess(*words, **more))
        return still[0]

    monkeypatch.setattr(story, "assess", same)
    monkeypatch.setattr(story, "averaged_utility", lambda *words: {})

    def train(name: str, rows: Rows, encoder: Path, unit: str | None, **more: Any) -> dict[str, bytes]:
        path = write(tmp_path / "data.csv", rows)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        options = RunOptions(device="cpu", cache=False)
        train_once(request(name, path, encoder, unit, **more), tmp_path / "run", options=options)
        return written(tmp_path / "run")

    return train


def seed_without(rows: Rows, label: str) -> int:
    """Return a seed with which half of the rows leave out all of a class."""
    full = Corpus("all", tuple(text for text, _, _ in rows))
    for seed in range(100):
        kept = set(keep_share(full, 0.5, seed=seed).texts)
        if not any(text in kept for text, mark, _ in rows if mark == label):
            return seed
    raise AssertionError("no such seed")


def same_files(one: dict[str, bytes], two: dict[str, bytes]) -> None:
    assert sorted(one) == sorted(two)
    for name, content in one.items():
        assert content == two[name], name


def test_every_protection_is_compared() -> None:
    assert set(PROTECTIONS) == set(catalog.PROTECTIONS)


@pytest.mark.parametrize("seed", [5, None], ids=["fixed seed", "secret"])
@pytest.mark.parametrize("name", PROTECTIONS)
def test_one_row_changed_changes_no_file_but_the_weights(
    name: str,
    seed: int | None,
    runs: Callable[..., dict[str, bytes]],
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    rows = corpus(1)
    who = victim(write(tmp_path / "data.csv", rows), None)
    # as many words as before: for texts that are rewritten word by word their number is public
    other = changed(rows, who, "a mother was calm and quick 7")
    one, two = (runs(name, each, tiny_encoder("bert"), None, noise_seed=seed) for each in (rows, other))
    same_files(one, two)


@pytest.mark.parametrize("fewer", [0, 1, -2], ids=["as many", "fewer", "more"])
@pytest.mark.parametrize("name", [name for name, (_, named) in PROTECTIONS.items() if named])
def test_one_unit_with_other_and_longer_rows_changes_no_file_but_the_weights(
    name: str, fewer: int, runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its first row goes as well, so that it appears after others; its text is longer than the encoder reads."""
    rows = corpus(3)
    who = victim(write(tmp_path / "data.csv", rows), "who")
    other = changed(rows, who, " ".join(["mother call note"] * 40))
    mine = [row for row in other if row[2] == who]
    if fewer > 0:
        other.remove(mine[0])
    other += mine[:1] * -fewer
    one, two = (runs(name, each, tiny_encoder("bert"), "who") for each in (rows, other))
    same_files(one, two)


def test_who_is_in_a_batch_does_not_depend_on_where_a_unit_first_appears(tmp_path: Path) -> None:
    rows = corpus(3)
    one, two = (
        load(write(tmp_path / f"{number}.csv", each), Columns(unit="who"), validation=0)
        for number, each in enumerate((rows, rows[1:]))
    )
    assert one.unit_names != two.unit_names, "in the order of appearance they are not the same"
    for step in range(5):
        drawn = []
        for each in (one, two):
            assert each.units is not None
            units = set(Poisson(0.3).draw(step, each.unit_count, Rng(1)).tolist())
            drawn.append({each.units[row] for row, unit in enumerate(unit_numbers(each).tolist()) if unit in units})
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", ["dp-sgd", "ldp"])
def test_without_held_out_rows_nothing_tells_of_a_long_text(
    name: str, runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path]
) -> None:
    """The tokenizer's last call was the one that counts how many texts were cut: its state was saved with it."""
    rows = corpus(1)
    other = changed(rows, "p000", " ".join(["mother call note"] * 40))
    one, two = (runs(name, each, tiny_encoder("bert"), None, validation="0") for each in (rows, other))
    same_files(one, two)


def test_with_a_population_one_unit_removed_changes_no_file_but_the_weights(
    runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    for unit, rows in (("who", corpus(3)), (None, corpus(1))):
        who = victim(write(tmp_path / "data.csv", rows), unit)
        if unit is None:
            kept = set(load(write(tmp_path / "data.csv", rows), adjacency="add/remove").split("train").texts)
            who = next(w for text, _, w in rows if text in kept)
        less = [row for row in rows if row[2] != who]
        one, two = (runs("dp-sgd", each, tiny_encoder("bert"), unit, population=70) for each in (rows, less))
        same_files(one, two)


def test_no_time_is_written(runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path]) -> None:
    for name in ("dp-sgd", "texthide"):
        found = runs(name, corpus(1), tiny_encoder("bert"), None)
        assert not {"seconds", "train_seconds"} & set(json.loads(found["metrics.json"]))
        assert b"seconds" not in found["README.md"] + found["ledger.jsonl"]


def test_the_same_weights_give_the_same_file(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.arange(float(i + 1)) for i in range(5)}
    about = {name: f"{name} é \n" for name in "abcdefgh"}
    found = set()
    for _ in range(8):
        save_tensors(tensors, tmp_path / "a", about)
        found.add((tmp_path / "a").read_bytes())
    assert len(found) == 1
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert file.metadata() == about and torch.equal(file.get_tensor("t4"), tensors["t4"])


# --- what is found in the data and written ----------------------------------------------------------------------------


def test_a_class_held_by_one_alone_is_refused_or_given(
    runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path]
) -> None:
    rows = [*corpus(1), ("the scan was good", "rare", "p000")]
    with pytest.raises(DataError, match=r"at least 2 rows in every class, got fewer in 1 of 3.*\(classes\)"):
        runs("dp-sgd", rows, tiny_encoder("bert"), None, validation="0")
    with pytest.raises(DataError, match="are only in the"):
        runs("dp-sgd", rows, tiny_encoder("bert"), None)
    rare = [(text, "rare" if who in {"p003", "p004"} else label, who) for text, label, who in corpus(1)]
    with pytest.raises(DataError, match="got fewer in"):  # those who have it are not even trained on
        runs("dp-sgd", rare, tiny_encoder("bert"), None, validation="0", share=0.5, seed=seed_without(rare, "rare"))
    names = ("clinic", "rare", "ward")
    for each in (rows, corpus(1)):
        found = runs("dp-sgd", each, tiny_encoder("bert"), None, validation="0", classes=names)
        assert b"rare" in found["settings.toml"]


def test_scores_of_a_protected_run_are_asked_for(
    runs: Callable[..., dict[str, bytes]], tiny_encoder: Callable[[str], Path]
) -> None:
    rows = [(text, str(i % 3), who) for i, (text, _, who) in enumerate(corpus(1))]
    rows[3] = (rows[3][0], "1.5", rows[3][2])
    with pytest.raises(DataError, match="task='regression'"):
        runs("dp-sgd", rows, tiny_encoder("bert"), None)
    assert b"regression" in runs("dp-sgd", rows, tiny_encoder("bert"), None, task="regression")["settings.toml"]


def test_neighbours_that_are_not_refused_have_the_same_classes(tmp_path: Path) -> None:
    """Every corpus of five rows over three classes, and every change of one row's label."""
    from itertools import product

    from discreet.training.plan import check_private_labels

    texts = tuple(f"t{i}" for i in range(5))
    asked = RunRequest(TextSource("x.csv"), ModelSettings(), TrainSettings())

    def names(labels: tuple[str, ...]) -> tuple[str, ...] | None:
        path = write(tmp_path / "x.csv", [(text, label, "w") for text, label in zip(texts, labels, strict=True)])
        try:
            found = load(path, validation=0)
            check_private_labels(dataclasses.replace(asked, data=TextSource(str(path))), found)
        except DataError:
            return None
        return found.label_names

    known = {labels: names(labels) for labels in product("abc", repeat=5)}
    assert any(known.values())
    for labels, mine in known.items():
        for row, label in product(range(5), "abc"):
            theirs = known[(*labels[:row], label, *labels[row + 1 :])]
            assert mine is None or theirs is None or mine == theirs
