"""The shape of the tree: no module imports itself through others, and each step of a verb is written once."""

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks.code_size import measure, recorded

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


SUM = "protections.private_sum"


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
    assert calls_of("secret", "plan") == {"training.job", "experiment.run"}


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
        "clipping.slow": "the slow twin",
        "releases.gradient": "a release that is not a step of a training",
        "audit.protections": "a release that is not a step of a training",
        "explorer.typed": "gradients of a typed sentence, for a page",
    }
    callers = {name for name in calls_of("backward", "tape") if not name.startswith("attacks.")}
    assert callers <= {"training.engine", *others}


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
