"""What tools see of the package: a type checker finds mistakes in programs, an editor completes names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import discreet

ROOT = Path(__file__).parents[2]

GOOD = """
from pathlib import Path

import torch
import discreet
from discreet import DPSGD, AttackRequest, Guarantee, ModelSettings, Rng, RunRequest, TextSource, TrainSettings
from discreet.accounting import GaussianDpEvent
from discreet.training import TrainingPlan, train

def losses_of(part: torch.Tensor) -> torch.Tensor:
    return part

model, corpus = torch.nn.Linear(2, 1), discreet.load("notes")
optimizer = torch.optim.SGD(model.parameters())
clf = discreet.TextClassifier("minilm", protect=DPSGD(epsilon=3), train="head", training=TrainSettings(epochs=2))
private = discreet.make_private(model, DPSGD(epsilon=8), num_units=10, batch_size=5, steps=2, secret=Rng(1))
request = RunRequest(TextSource("notes"), ModelSettings(), TrainSettings(), discreet.DirDPSGD(epsilon=3))
run = discreet.train_once(request, options=discreet.RunOptions(device="cpu"))
scene = discreet.experiment.load_scene(discreet.experiment.SceneRequest("notes"))
result = discreet.attack_once(AttackRequest(discreet.attacks.Dager()), scene)
trainer = discreet.PrivateTrainer(model, protect=DPSGD(epsilon=8), groups="patient_id")
plan = TrainingPlan.make(run.model, corpus, protect=discreet.InstanceEncoding(epsilon=8), training=TrainSettings())

reveal_type(corpus)
reveal_type(corpus.split("train").texts)
reveal_type(clf.fit(["a"], [1], groups=["p"]))
reveal_type(clf.guarantee_)
reveal_type(private)
reveal_type(private.step(losses_of, optimizer))
reveal_type(private.guarantee.epsilon)
reveal_type(trainer.guarantee)
reveal_type(run)
reveal_type(run.guarantee)
reveal_type(run.utility)
reveal_type(discreet.load_run("runs/a").guarantee)
reveal_type(discreet.guarantee_of(GaussianDpEvent(1.0), delta=1e-5))
reveal_type(Guarantee(1.0, 1e-5, "note", discreet.Adjacency.ZERO_OUT, "pld").caveats)
reveal_type(discreet.Caveat.FIXED_SEED.sentence)
reveal_type(discreet.Ledger.open(None, unit="note", adjacency="zero-out").guarantee(1e-5))
reveal_type(discreet.people_totals())
reveal_type(result)
reveal_type(result.leakages[0].value)
reveal_type(discreet.Guess().texts)
reveal_type(discreet.TextHide().mix)
reveal_type(discreet.LocalPrivacy(epsilon=8).queries)
reveal_type(discreet.SanText(epsilon_per_word=20.0).keep_marks)
reveal_type(discreet.NoisyWords(epsilon_per_word=20.0).epsilon_per_word)
reveal_type(Rng.secret().is_secret)
reveal_type(discreet.DiscreetError("no").settings[0][0])
reveal_type(discreet.BudgetError("no").message.marked)
reveal_type(plan.steps)
reveal_type(train(run.model, corpus, plan).guarantee)
reveal_type(discreet.attacks.Lira().name)
reveal_type(discreet.audit.audit_run(Path("runs/a")).lower_bound)
reveal_type(discreet.catalog.ATTACKS)
"""

# Each line is one mistake, and the error that mypy must report for it.
BAD = """
import torch
import discreet
from discreet import DPSGD, Ledger, TextClassifier
from discreet.accounting import GaussianDpEvent
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
private = discreet.make_private(model, DPSGD(epsilon=8), num_units="eight", batch_size=4, steps=1)  # arg-type
moved: str = private.step(torch.zeros(2), optimizer)  # assignment
for part in private.batches([1, 2], unit_of=["a", "b"]): pass  # call-arg
private.guarantee.epsilon.foo  # attr-defined
TextClassifier(bogus=1)  # call-arg
TextClassifier(train=discreet.TrainSettings())  # arg-type
TextClassifier(training="head")  # arg-type
DPSGD(epsilon="three")  # arg-type
discreet.nonsense  # attr-defined
discreet.attacks.Lyra()  # attr-defined
discreet.guarantee_of(GaussianDpEvent(1.0))  # call-arg
discreet.AttackRequest("dager")  # arg-type
Ledger.open(None, unit=1, adjacency="zero-out")  # arg-type
number: int = discreet.load("notes").texts  # assignment
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what `mypy --strict` says of the two programs, by their names; the cache is that of `make check`."""
    folder = tmp_path_factory.mktemp("programs")
    for name, text in (("good", GOOD), ("bad", BAD)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    files = [str(folder / "good.py"), str(folder / "bad.py")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, *cache, *files], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return {name: [line for line in lines if f"{name}.py:" in line] for name in ("good", "bad")}


def test_what_a_program_gets_has_a_type(report: dict[str, list[str]]) -> None:
    revealed = [line.partition("Revealed type is ")[2] for line in report["good"]]
    assert len(revealed) == GOOD.count("reveal_type(") and all(revealed), report["good"]
    assert [one for one in revealed if re.search(r"\bAny\b", one)] == []
    names = set(re.findall(r"\w+", GOOD)) & set(discreet.__all__)
    assert len(names) >= 30


def test_every_planted_mistake_is_found(report: dict[str, list[str]]) -> None:
    planted = {
        number: line.rpartition("# ")[2] for number, line in enumerate(BAD.splitlines(), start=1) if "  # " in line
    }
    found = dict(re.findall(r"bad\.py:(\d+): error: .*\[([a-z-]+)\]$", "\n".join(report["bad"]), re.M))
    assert len(planted) >= 10
    assert {int(number): code for number, code in found.items()} == planted


def completions(code: str) -> set[str]:
    import jedi

    project = jedi.Project(ROOT, added_sys_path=[str(ROOT / "src")], load_unsafe_extensions=False)
    script = jedi.Script(code, project=project, environment=jedi.InterpreterEnvironment())
    return {one.name for one in script.complete(len(code.splitlines()), len(code.splitlines()[-1]))}


@pytest.mark.parametrize("package", ["", *(f".{name}" for name in ("attacks", "protections", "audit", "federated"))])
def test_an_editor_completes_the_names(package: str) -> None:
    door = discreet if not package else getattr(discreet, package[1:])
    assert set(door.__all__) <= completions(f"import discreet\ndiscreet{package}.")


def test_an_editor_shows_the_arguments() -> None:
    assert {"num_units=", "batch_size=", "population="} <= completions("import discreet\ndiscreet.make_private(")
