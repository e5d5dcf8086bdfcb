"""The options of commands are the fields of dataclasses: each has help, and keeps the name it always had."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
import typer
from typer.testing import CliRunner

from discreet.catalog import PROTECTIONS, protection_class, settings_of_protection
from discreet.cli.main import app, main
from discreet.cli.options import fields_with_help, generated
from discreet.cli.train import TrainOptions, options_of_protections
from discreet.core.settings import option
from discreet.models.settings import ModelSettings, TrainSettings

SOURCE = Path(__file__).parents[2] / "src"
NOT_OPTIONS = {ModelSettings: {"hidden"}, TrainSettings: {"momentum", "averaging", "gradient_norm"}}
# Every option that `train` has had; scripts use them.
SPELLINGS = """
--out --text --text-pair --label --unit --separator --quoting --rows --share --task --classes --validation --seed
--device --json --help --protect --delta --population --noise-seed --ledger --budget --epsilon --clip-norm --public
--mechanism --labels --label-epsilon --calibration --dimension --noise-multiplier --true-positive-rate
--false-positive-rate --clipping --kappa --partition --masks --fresh-masks --mix --mix-cap --public-label
--inference-epsilon --query-dimension --position --projection --sampling --queries --epsilon-per-word --keep-marks
--unknown --rewrite-queries --keep-queries --sensitive --sample-others --download --model --train --pooling --head
--pooler --no-pooler --embeddings --no-embeddings --dropout --max-length --checkpoint-seconds --resume --cache
--no-cache --epochs --batch-size --learning-rate --head-rate --warmup --weight-decay --optimizer --accumulate
--patience --precision --epsilon-per-message
"""

ATTACK_SPELLINGS = """
--attack --data --examples --batch-size --seconds --max-words --first-words --split --public --metric --set --model
--train --embeddings --no-embeddings --pooling --head --download --protect --noise-multiplier --kappa --epsilon --delta
--clip-norm --protect-set --noise-seed --candidates --draws --steps --text --text-pair --label --unit --separator
--quoting --rows --share --seed --device --whole-texts --threads --json --members --references --plain-references
--references-from --view
"""


@pytest.fixture(autouse=True)
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def names_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


@pytest.mark.parametrize("name", PROTECTIONS)
def test_every_setting_of_a_protection_says_what_it_is_for(name: str) -> None:
    kind = protection_class(name)
    described = {one.name for one, _ in fields_with_help(kind)}
    assert described == set(settings_of_protection(name))


@pytest.mark.parametrize("kind", [ModelSettings, TrainSettings])
def test_every_setting_of_model_and_loop_that_is_an_option_says_what_it_is_for(kind: type[Any]) -> None:
    described = {one.name for one, _ in fields_with_help(kind)}
    assert described == set(kind.__dataclass_fields__) - NOT_OPTIONS[kind]


def test_help_texts_are_sentences_without_options_of_the_command_line() -> None:
    kinds = [ModelSettings, TrainSettings, *(protection_class(name) for name in PROTECTIONS)]
    for kind in kinds:
        for one, _ in fields_with_help(kind):
            assert one.metadata["help"].endswith(".") and one.metadata["panel"], (kind, one.name)
            assert "--" not in one.metadata["help"], (kind, one.name)


def test_settings_of_one_name_have_one_type_in_all_protections() -> None:
    types: dict[str, Any] = {}
    for name in PROTECTIONS:
        for one, hint in fields_with_help(protection_class(name)):
            plain = str(hint).replace(" | None", "").removeprefix("<class '").removesuffix("'>")
            assert types.setdefault(one.name, plain) == plain, (name, one.name)


def test_train_reads_every_option_it_has_had() -> None:
    command = cast(typer.core.TyperGroup, typer.main.get_command(app)).commands["train"]
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    theirs = CliRunner().invoke(app, ["train", "--help-all"]).output
    assert names_in(SPELLINGS) <= own | names_in(theirs)


def test_attack_has_every_option_it_has_had() -> None:
    command = cast(typer.core.TyperGroup, typer.main.get_command(app)).commands["attack"]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}
    assert names_in(ATTACK_SPELLINGS) == options


def test_options_of_protections_do_not_repeat_those_of_train() -> None:
    own = {one.name for kind in (TrainOptions, ModelSettings, TrainSettings) for one, _ in fields_with_help(kind)}
    names = [one.name for one in options_of_protections()]
    assert len(set(names)) == len(names) and not own & set(names)


def test_the_short_help_names_the_longer_ones_and_needs_no_torch() -> None:
    code = (
        "import sys\nfrom discreet.cli.main import main\nassert main(['train', '--help']) == 0\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE), "COLUMNS": "80", "NO_COLOR": "1"},
    )
    assert done.stdout.splitlines()[-1] == "False False"
    shown = names_in(done.stdout)
    assert {"--out", "--protect", "--epsilon", "--unit", "--text", "--label", "--model", "--train"} <= shown
    assert {"--epochs", "--resume", "--json", "--help-protection", "--help-all"} <= shown
    assert len(shown) <= 14, shown


@pytest.mark.parametrize("name", PROTECTIONS)
def test_the_help_of_a_protection_shows_its_options_and_no_other(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help-protection", name]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and not re.search(r"--?[a-z-]*…", out)
    own = {"--" + one.replace("_", "-") for one in settings_of_protection(name)}
    pair = {"--keep-queries"} if "--rewrite-queries" in own else set()
    assert names_in(out) == own | pair | {"--protect", "--help-protection"}


def test_a_misspelled_protection_or_option_is_corrected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "--help-protection", "dp-sdg"]) == 2
    assert "Did you mean 'dp-sgd'?" in capsys.readouterr().err
    assert main(["train", "notes", "--out", str(tmp_path / "run"), "--clip-nrom", "1"]) == 2
    assert "--clip-norm" in capsys.readouterr().err


def test_an_option_without_a_protection_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "notes", "--out", str(tmp_path / "run"), "--mix=2"]) == 2
    assert "Expected --mix to be used with --protect, got 2" in capsys.readouterr().err


@dataclass(frozen=True)
class Bread:
    """Settings of some bread."""

    flour: float = field(default=1.0, metadata=option("Kilograms of flour.", "Dough"))
    salted: bool = field(default=False, metadata=option("Add salt.", "Dough"))
    secret: int = 7


@pytest.mark.parametrize(
    ("given", "whole", "partial"),
    [
        ([], Bread(), {}),
        (["--flour", "2", "--salted"], Bread(2.0, True), {"flour": 2.0, "salted": True}),
    ],
)
def test_a_command_gets_a_dataclass_or_what_was_given_of_it(given: list[str], whole: Bread, partial: Any) -> None:
    seen: list[Any] = []

    @generated()
    def whole_of(bread: Bread) -> None:
        seen.append(bread)

    @generated(short=("flour",))
    def part_of(bread: Annotated[dict[str, Any], Bread]) -> None:
        seen.append(bread)

    for command in (whole_of, part_of):
        kitchen = typer.Typer()
        kitchen.command()(command)
        assert CliRunner().invoke(kitchen, given).exit_code == 0
    assert seen == [whole, partial]
    shown = names_in(CliRunner().invoke(kitchen, ["--help"]).output)
    assert "--flour" in shown and "--salted" not in shown and "--secret" not in shown


def test_no_function_of_the_command_line_takes_more_than_ten_parameters() -> None:
    for path in sorted((SOURCE / "discreet" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
                assert count <= 10, (path.name, node.name, count)


def test_no_docstring_of_a_command_has_brackets_that_the_help_would_drop_as_markup() -> None:
    for command in app.registered_commands:
        assert "[" not in ((command.callback and command.callback.__doc__) or ""), command.name
