"""Whatever lies in a folder that may be shared is listed in `docs/folders.md` with the reason why it may.

The lists are compared with the files and keys that are written. On two neighbouring corpora with the same secret, only
what a list calls noised, held-out or random differs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from discreet.cli.main import main
from discreet.core.files import load_tensors
from discreet.core.guarantee import Adjacency
from discreet.data.sources import TextSource
from discreet.estimator import TextClassifier
from discreet.models.encoder import load_tokenizer
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD

PAGE = Path(__file__).parents[2] / "docs" / "folders.md"
RUN, SEARCH, TRAINER, SANITIZED, STUDY = (
    "A run folder",
    "After a search",
    "A folder of the Hugging Face Trainer",
    "A sanitized file",
    "A study",
)
NONE, PUBLIC, NOISED, HELD_OUT, RANDOM, OWNER = "none", "public", "noised", "held-out", "random", "owner only"
MAY_DIFFER = {NOISED, HELD_OUT, RANDOM}
WHOLE = "whole"  # the key of a file that is not read by keys


@dataclass(frozen=True)
class Entry:
    """A line of a list: the pattern of a file, that of a key in it, and how it depends on private data."""

    file: str
    key: str
    dependence: str

    def matches(self, file: str, key: str) -> bool:
        return fnmatchcase(file, self.file) and (fnmatchcase(key, self.key) or self.key == WHOLE)


def listed(section: str) -> list[Entry]:
    """Return the entries of a section of the page."""
    text = re.split(rf"\n#+ {section}\n", PAGE.read_text(encoding="utf-8"))[1]
    text = re.split(r"\n#+ ", text)[0]
    entries = []
    for line in re.findall(r"^\| (`.+?) \| (.+?) \| (.+?) \|$", text, flags=re.M):
        assert line[1] in {NONE, PUBLIC, *MAY_DIFFER, OWNER}, line
        for name in re.findall(r"`([^`]+)`", line[0]):
            file, _, keys = name.partition(": ")
            entries += [Entry(file, key, line[1]) for key in (keys or WHOLE).split(", ")]
    return entries


def flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of plain values with what they hold; an empty table is a value."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from flat(one, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            yield from flat(one, at)
    else:
        yield at, value


def contents(folder: Path) -> dict[tuple[str, str], Any]:
    """Return everything in a folder by file and key; tensors by their names and shapes too."""
    found: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.rglob("*")):
        # A checkpoint of the Trainer is a folder of the same kind.
        name = re.sub(r"^checkpoint-\d+/", "", path.relative_to(folder).as_posix())
        if path.is_dir():
            continue
        for key, value in parts(path):
            found.setdefault((name, key), []).append(value)
    return found


def parts(path: Path) -> Iterator[tuple[str, Any]]:
    by_key = path.name in {"metrics.json", "audit.json", "guarantee.json", "trainer_state.json"}
    if path.suffix == ".json" and (by_key or path.name.startswith("private_") or path.name.endswith("privacy.json")):
        yield from flat(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix == ".toml":
        yield from flat(tomllib.loads(path.read_text(encoding="utf-8")))
    elif path.name == "ledger.jsonl":
        for line in path.read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            spend = isinstance(value, list)
            yield from flat(dict(zip(("id", "secure", "check"), value, strict=True)) if spend else value)
    elif path.suffix == ".safetensors":
        yield WHOLE, path.read_bytes()
        tensors, about = load_tensors(path)
        yield "shapes", {key: (tuple(one.shape), one.dtype) for key, one in tensors.items()}
        yield "about", about
    else:
        yield WHOLE, path.read_bytes()


def dependence(entries: list[Entry], file: str, key: str) -> str:
    """Return how a key depends on private data by the first entry that names it."""
    return next((one.dependence for one in entries if one.matches(file, key)), "not listed")


def check_listed(entries: list[Entry], *folders: Path) -> None:
    """Assert that everything in the folders is listed."""
    for folder in folders:
        unlisted = [name for name in contents(folder) if dependence(entries, *name) == "not listed"]
        assert unlisted == [], folder.name


def check_neighbours(entries: list[Entry], first: Path, second: Path) -> set[tuple[str, str]]:
    """Assert that two folders differ only where the list allows it, and return where they differ."""
    check_listed(entries, first, second)
    one, other = contents(first), contents(second)
    assert set(one) == set(other)
    differing = {name for name in one if one[name] != other[name]}
    for file, key in sorted(differing):
        allowed = dependence(entries, file, key) in MAY_DIFFER and key not in {"shapes", "about"}
        assert allowed, (file, key, one[file, key], other[file, key])
    return differing


# ---------------------------------------------------------------------------------------------------------------------
# Neighbouring corpora: one patient of the train split has other rows, or none.

Rows = list[dict[str, str]]


def corpus(toy_rows: list[tuple[str, str]]) -> Rows:
    return [
        {"text": text, "label": label, "patient_id": f"p{row // 4}"} for row, (text, label) in enumerate(toy_rows[:80])
    ]


def written(rows: Rows, path: Path) -> Path:
    lines = [",".join(row.values()) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n", encoding="utf-8")
    return path


def exchanged(row: dict[str, str]) -> dict[str, str]:
    """Return another row with as many words: where that is public, it stays."""
    words = ["elbow"] * len(row["text"].split())
    return {**row, "text": " ".join(words), "label": "ward" if row["label"] == "clinic" else "clinic"}


NEIGHBOURS: dict[str, Callable[[Rows], Rows]] = {
    "exchanged": lambda rows: [exchanged(row) for row in rows],
    "one long row": lambda rows: [{**rows[0], "text": "a heart " * 60, "label": "ward"}],
    "absent": lambda rows: [],
}
CASES = {
    "dp-sgd, patience": (["--protect", "dp-sgd", "--noise-multiplier", "1", "--patience", "3"], "exchanged"),
    "dp-sgd, add/remove": (
        ["--protect", "dp-sgd", "--noise-multiplier", "3", "--population", "16", "--audit", "100"],
        "absent",
    ),
    "dp-sgd, nothing held out": (["--protect", "dp-sgd", "--epsilon", "6", "--validation", "0"], "one long row"),
    "dir-dp-sgd": (["--protect", "dir-dp-sgd", "--kappa", "20"], "exchanged"),
    "texthide": (["--protect", "texthide"], "exchanged"),
    "dp-ie": (["--protect", "dp-ie", "--epsilon", "8"], "exchanged"),
    "ldp": (["--protect", "ldp", "--epsilon", "8", "--projection", "whole"], "exchanged"),
    "santext": (["--protect", "santext", "--epsilon-per-word", "8"], "exchanged"),
    "tune": (["--epsilon", "6", "--try", "learning_rate=0.01,0.1", "--trials", "1"], "exchanged"),
}


@pytest.fixture(scope="module")
def pairs(
    toy_rows: list[tuple[str, str]], tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """Return a function from a case to the folders of two runs with the same secret, on neighbouring corpora."""
    made: dict[str, tuple[Path, Path]] = {}

    def of(name: str) -> tuple[Path, Path]:
        if name in made:
            return made[name]
        folder, (options, kind) = tmp_path_factory.mktemp("pairs"), CASES[name]
        adjacency = Adjacency.ADD_REMOVE if "--population" in options else Adjacency.ZERO_OUT
        rows = corpus(toy_rows)
        source = TextSource(str(written(rows, folder / "rows.csv")), unit="patient_id")
        whose = source.load(adjacency).split("train").units[0]
        own = [row for row in rows if row["patient_id"] == whose]
        at = rows.index(own[0])
        others = [row for row in rows if row["patient_id"] != whose]
        neighbour = [*others[:at], *NEIGHBOURS[kind](own), *others[at:]]
        runs = []
        command = "tune" if name == "tune" else "train"
        fixed = ["--unit", "patient_id", "--classes", "clinic,ward", "--train", "head", "--device", "cpu"]
        fixed += ["--epochs", "1", "--batch-size", "8", "--model", str(tiny_encoder("bert")), "--out", "run"]
        for version, content in (("first", rows), ("second", neighbour)):
            place = folder / version
            written(content, place / "rows.csv")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                patch.setenv("DISCREET_HOME", str(place / "state"))
                patch.setenv("DISCREET_CACHE", str(place / "cache"))
                patch.setattr(os, "urandom", lambda count: b"s" * count)
                assert main([command, "rows.csv", *fixed, *options]) == 0
            runs.append(place / "run")
        made[name] = (runs[0], runs[1])
        return made[name]

    return of


def entries_of(name: str) -> list[Entry]:
    """Return the list for a case."""
    return [*(listed(SEARCH) if name == "tune" else []), *listed(RUN)]


@pytest.mark.parametrize("name", CASES)
def test_runs_on_neighbouring_corpora_differ_only_where_the_list_says(
    name: str, pairs: Callable[[str], tuple[Path, Path]]
) -> None:
    first, second = pairs(name)
    differing = check_neighbours(entries_of(name), first, second)
    assert ("model.safetensors", WHOLE) in differing or name == "tune"  # the neighbour was trained on
    for folder in (first, second):  # no file tells when the ledger was written last
        assert len({path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}) == 1


def test_every_line_about_runs_is_needed(pairs: Callable[[str], tuple[Path, Path]], classifier: Path) -> None:
    found = {name for case in CASES for name in contents(pairs(case)[0])} | set(contents(classifier))
    unused = [one for one in entries_of("tune") if not any(one.matches(*name) for name in found)]
    assert [(one.file, one.key) for one in unused] == []


@pytest.fixture(scope="module")
def classifier(
    toy_rows: list[tuple[str, str]], tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "run"
    rows = corpus(toy_rows)
    settings = TrainSettings(epochs=1, batch_size=8)
    made = TextClassifier(
        str(tiny_encoder("bert")),
        protect=DPSGD(epsilon=6.0),
        training=settings,
        train="head",
        classes=["clinic", "ward"],
    )
    labels, people = ([row[name] for row in rows] for name in ("label", "patient_id"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCREET_HOME", str(folder.parent / "state"))
        made.fit([row["text"] for row in rows], labels, groups=people).save(folder)
    return folder


def test_a_saved_classifier_is_listed(classifier: Path) -> None:
    check_listed(listed(RUN), classifier)


def test_a_sanitized_file_is_listed_and_differs_only_in_its_texts(
    toy_rows: list[tuple[str, str]], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = corpus(toy_rows)[:12]
    folders = []
    # Columns that are not rewritten are not protected: the neighbour has the same label.
    other = [{**exchanged(row), "label": row["label"]} if row["patient_id"] == "p1" else row for row in rows]
    for version, content in (("first", rows), ("second", other)):
        source, out = written(content, tmp_path / f"{version}.csv"), tmp_path / version / "clean.csv"
        out.parent.mkdir()
        options = ["--epsilon-per-word", "4", "--unit", "patient_id", "--model", str(tiny_encoder("bert"))]
        assert main(["sanitize", str(source), "--out", str(out), *options]) == 0
        folders.append(out.parent)
    differing = check_neighbours(listed(SANITIZED), folders[0], folders[1])
    assert {file for file, _ in differing} == {"clean.csv", "clean.csv.privacy.json"}
    found = set(contents(folders[0]))
    assert all(any(one.matches(*name) for name in found) for one in listed(SANITIZED))


@pytest.mark.filterwarnings("ignore")  # those of transformers and accelerate
def test_a_folder_of_the_trainer_is_listed_and_differs_only_where_the_list_says(
    tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    from tests.integrations.test_transformers import arguments, bert, padded, rows

    from discreet.integrations.transformers import PrivateTrainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    people, tokenizer = rows(24), load_tokenizer(tiny_encoder("bert"))
    folders = []
    for version in ("first", "second"):
        place = tmp_path / version
        place.mkdir()
        private = [dict(row) for row in people]
        if version == "second":  # one patient has other tokens, more of them, and other labels
            for row in private:
                if row["patient_id"] == "p1":
                    row |= {"input_ids": [7] * 8, "attention_mask": [1] * 8, "labels": 0}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            patch.setattr(os, "urandom", lambda count: b"s" * count)
            given = arguments(Path(), max_steps=2, save_strategy="steps", save_steps=1, save_total_limit=1)
            trainer = PrivateTrainer(
                bert(), given, train_dataset=private, data_collator=padded, groups="patient_id", protect=DPSGD(1.0),
                processing_class=tokenizer,
            )  # fmt: skip
            trainer.train()
            trainer.save_model()
            trainer.save_state()
        folders.append(place / "out")
    differing = check_neighbours(listed(TRAINER), folders[0], folders[1])
    assert ("model.safetensors", WHOLE) in differing
    assert any(path.parent.name == "checkpoint-2" for path in folders[0].rglob("optimizer.pt"))
    found = set(contents(folders[0]))
    unused = [one for one in listed(TRAINER) if not any(one.matches(*name) for name in found)]
    assert [(one.file, one.key) for one in unused] == []


def test_a_study_is_for_its_owner(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
    from sample import write_sample

    from discreet.report.page import write_report

    write_sample(tmp_path, seeds=1)
    kept = {path.name for path in tmp_path.iterdir()}
    write_report(tmp_path)
    entries = listed(STUDY)
    for path in tmp_path.iterdir():
        assert dependence(entries, path.name, WHOLE) == OWNER
        assert path.name in kept or path.stat().st_mode & 0o077 == 0
