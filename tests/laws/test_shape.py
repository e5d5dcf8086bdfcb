"""The shape of the tree: no module imports itself through others, and each step of a verb is written once."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.code_size import measure, recorded

SOURCE = Path(__file__).parents[2] / "src" / "discreet"


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that run when a module or one of its functions does; imports for type checkers do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        else:
            yield from imported(node)


GRAPH = {
    name: {one for one in imported(ast.parse(path.read_text(encoding="utf-8"))) if one in MODULES and one != name}
    for name, path in MODULES.items()
}


def cycle_through(name: str) -> list[str] | None:
    """Return a way from a module back to itself, or None."""
    before: dict[str, str] = {}
    waiting = [name]
    while waiting:
        here = waiting.pop()
        for there in sorted(GRAPH.get(here, ())):
            if there == name:
                way = [here]
                while way[-1] != name:
                    way.append(before[way[-1]])
                return [name, *reversed(way[:-1]), name] if len(way) > 1 else [name, here, name]
            if there not in before:
                before[there] = here
                waiting.append(there)
    return None


def test_no_module_imports_itself_through_others() -> None:
    cycles = [" -> ".join(way) for name in GRAPH if (way := cycle_through(name)) is not None]
    assert cycles == []


def calls_of(method: str, owner: str = "") -> set[str]:
    """Return the modules that call a method of something whose name ends so, or a function of this name."""
    found = set()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr == method:
                if owner and ast.unparse(node.func.value).endswith(owner):
                    found.add(name.removeprefix("discreet."))
            elif isinstance(node.func, ast.Name) and node.func.id == method and not owner:
                found.add(name.removeprefix("discreet."))
    return found


SUM = "protections.base"
CLASSES_OF_PROTECTIONS = {
    node.name
    for name, path in MODULES.items()
    if name.startswith("discreet.protections.")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.ClassDef) and any("Protection" in ast.unparse(base) for base in node.bases)
} | {"Protection", "SanTextPlus", "NoisyWords"}


def test_units_are_bounded_in_one_module() -> None:
    assert calls_of("gather", "protect") == {SUM}
    # The protection itself, the memory of a part of made-up rows, and an attacker who computes gradients of candidates.
    assert calls_of("clipped_sum") == {"protections.dp_sgd", "training.independence", "attacks.identification"}


def test_noise_for_a_sum_is_drawn_in_one_module() -> None:
    assert calls_of("releaser", "protect") == {SUM}
    assert calls_of("release", "protect") == {SUM, "experiment.attack.people"}  # the latter rewrites texts


def test_an_optimizer_steps_on_a_private_sum_in_one_module() -> None:
    others = {
        "training.steps": "a step without protection, or on protected vectors",
        "federated.server": "updates that clients have released",
        "attacks.extraction.attribute": "the attacker's own model",
        "attacks.representation.inversion": "the attacker's own model",
        "attacks.representation.reprecon": "the attacker's own model",
    }
    assert calls_of("step", "optimizer") == {SUM, *others}


def test_models_are_built_in_one_module() -> None:
    assert calls_of("build", "Classifier") == {"models.build"}
    assert calls_of("load", "LanguageModel") == {"models.build"}


def test_ledgers_of_runs_are_opened_in_two_modules() -> None:
    # For a run that is written or counted for people, and for every other one; a limit beside a ledger is the plan's.
    assert calls_of("open_ledger", "plan") == {"training.account", "experiment.run"}


def test_plans_are_made_and_secrets_drawn_in_two_modules() -> None:
    # For a run, and for a training without one; a plan makes those of clients, of candidates and of public text itself.
    assert calls_of("make", "TrainingPlan") == {"training.loop", "experiment.run"}
    assert calls_of("secret", "plan") == {"training.loop", "experiment.run"}


def test_a_model_is_trained_in_one_module() -> None:
    others = {
        "training.loop": "the training on public text that comes before another",
        "training.tuning": "the trials of a search, of which one is released",
    }
    assert calls_of("train") == {"experiment.run", *others}
    assert calls_of("open_job") == {"training.loop", "federated.client"}
    products = {"cli.train", "estimator", "study.trial", "experiment.attack.signals"}
    assert calls_of("train_once") == products


def test_attacks_are_run_and_fitted_in_one_module() -> None:
    products = {"cli.attack", "cli.model_attack", "explorer.reading", "experiment.attack.own_model", "study.trial"}
    assert calls_of("attack_once") == products
    assert calls_of("AttackResult") == {"experiment.attack.runner"}
    fitting = {"experiment.attack.runner", "study.trial", "cli.attack_table", "explorer.menu"}
    assert calls_of("misfit") == fitting


def test_parts_of_a_private_step_are_recorded_in_one_module() -> None:
    others = {
        "training.capture": "inside of a graph that the engine replays",
        "training.independence": "made-up rows",
        "clipping.independence": "made-up rows",
        "releases.gradient": "a release that is not a step of a training",
        "audit.protections": "a release that is not a step of a training",
        "explorer.typed": "gradients of a typed sentence, for a page",
    }
    callers = {name for name in calls_of("backward", "tape") if not name.startswith("attacks.")}
    assert callers <= {"training.engine", *others}


TASKS = {"classification", "regression", "lm"}


def test_what_a_task_is_is_asked_of_its_value() -> None:
    """A name is compared where text is read, by the name that a user gave; everything else asks a `Task`."""
    readers = {"data.labels", "data.sources", "integrations.losses"}
    comparing = {
        name.removeprefix("discreet.")
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Constant) and one.value in TASKS for one in (node.left, *node.comparators))
    }
    assert comparing == readers


def test_a_protection_answers_for_itself() -> None:
    """`isinstance` on a protection chooses what happens in few modules; an assertion only tells the type checker."""
    others = {
        "training.many_heads": "the batched twin of steps of linear heads",
        "training.tuning": "a search divides the budget of dp-sgd alone",
        "audit.protections": "an audit of a protection knows its settings",
        "audit.canaries": "gradient canaries read the noisy sums of dp-sgd",
        "audit.checks": "what an audit checks depends on the noise",
        "audit.steps": "what an audit checks depends on the noise",
        "audit.watch": "what an audit checks depends on the noise",
        "experiment.attack.identification": "the attack simulates normal noise and directions",
        "experiment.attack.recorded": "the attack simulates normal noise",
        "experiment.run": "gradient canaries are the default with dp-sgd",
    }
    choosing = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asserted = {id(call) for node in ast.walk(tree) if isinstance(node, ast.Assert) for call in ast.walk(node.test)}
        for node in ast.walk(tree):
            asking = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and id(node) not in asserted
            if asking and {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & CLASSES_OF_PROTECTIONS:
                choosing.add(name.removeprefix("discreet."))
    inside = {name for name in choosing if name.startswith("protections.")}
    assert choosing - inside == set(others)


def test_the_table_of_sizes_is_of_today() -> None:
    """A package that grows by more than 3%, or 40 lines, has its line in docs/architecture.md updated."""
    files, lines = measure(None)
    table = recorded()
    assert set(table) == {*files, "all"}
    off = {
        name: (table[name], lines[name])
        for name in files
        if abs(table[name] - lines[name]) > max(40, lines[name] * 0.03)
    }
    assert off == {} and abs(table["all"] - lines.total()) <= lines.total() * 0.03


def test_a_cycle_is_found() -> None:
    GRAPH["discreet.a"], GRAPH["discreet.b"] = {"discreet.b"}, {"discreet.a"}
    try:
        assert cycle_through("discreet.a") == ["discreet.a", "discreet.b", "discreet.a"]
    finally:
        del GRAPH["discreet.a"], GRAPH["discreet.b"]


# Folders whose tests are about more than one module.
_OF_MANY_MODULES = {"laws", "anchors", "stories", "extension", "doors"}


def test_every_test_file_is_named_after_a_module() -> None:
    """`tests/accounting/test_events.py` and `test_events_tree.py` test `accounting/events.py`, or a folder `events`."""
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("test_*.py")):
        room, *_ = path.relative_to(root).parts
        if room in _OF_MANY_MODULES:
            continue
        folder = root.parent / "tools" if room == "tools" else SOURCE / room
        inside = [SOURCE / "__init__.py", *SOURCE.glob("*.py")] if room == path.name else list(folder.rglob("*"))
        names = {one.stem for one in inside} | {"public_names"}
        topic = path.stem.removeprefix("test_")
        assert any(topic == name or topic.startswith(f"{name}_") for name in names), f"{path} names no module"
