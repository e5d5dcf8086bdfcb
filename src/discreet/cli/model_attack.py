"""`discreet attack RUN` with an attack on the trained model: progress, the table of metrics, and the verdict."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.cli.attack_table import cells_of, describe_guarantee, print_details, set_by
from discreet.cli.options import of_training
from discreet.cli.output import as_json, console, headed, note, plain, stages, working
from discreet.core.errors import UnsupportedError, invalid, spelled
from discreet.core.files import RUN_DIGEST
from discreet.metrics.table import METRICS, short_label_of
from discreet.releases.description import describe_knowledge, describe_release
from discreet.report.words import at_most

if TYPE_CHECKING:
    from discreet.attacks.base import Attack
    from discreet.cli.attack import AttackOptions
    from discreet.experiment import AttackResult

# Options of an attack on a trained model. Every other one without a default is rejected, because the model was trained
# under its own protection, on its own text.
_FOR_MODELS = ("attack", "settings", "members", "references", "references_from", "view")


def attack_trained_model(
    name: str,
    chosen: Attack,
    options: AttackOptions,
    run: Path | None,
    *,
    seed: int,
    device: str,
    json: bool,
    start: float,
) -> None:
    """Attack the trained model of a run, and print the metrics with chance and bound, and the verdict."""
    from discreet.experiment import AttackRequest, SceneRequest, attack_once, load_scene

    if run is None:
        raise UnsupportedError(
            f"Expected RUN, the folder of a trained model, for {name}, got none. Train one with `discreet train`."
        )
    for option in dataclasses.fields(options):
        value = getattr(options, option.name)
        if option.default is None and value is not None and option.name not in _FOR_MODELS:
            shown = ",".join(value) if isinstance(value, list) else value
            remedy = "The run's own text, on which the model was trained under its own protection, is attacked."
            raise invalid(option.name, shown, f"left out for {name}, which attacks the trained model", remedy)
    runs: tuple[Path, ...] = ()
    if options.references_from:
        from discreet.experiment.attack.signals import runs_in

        runs = runs_in([Path(one) for one in options.references_from], run)
    request = AttackRequest(
        chosen,
        name=name,
        seed=seed,
        members=options.members,
        references=options.references,
        references_protected=not options.plain_references,
        references_from=runs,
    )
    with working("loading the text and the model"):
        scene = load_scene(SceneRequest(run=run, seed=seed, device=device))
    loading = time.monotonic() - start
    note("The result tells what was in the training data: it is for the owner of the run, not for release.")
    own = {one.name for one in dataclasses.fields(chosen)}  # type: ignore[arg-type]
    with spelled(set_by("--set", own)), spelled(of_training("canaries")), stages() as progress:
        result = attack_once(request, scene, progress=progress)
    for warning in result.details.get("warnings", ()):
        note(warning)
    if json:
        assert scene.run is not None
        as_json({RUN_DIGEST: scene.run.digest, **result.as_dict(), "loading": loading})
        return
    show(result, loading)


def show(result: AttackResult, loading: float) -> None:
    """Print the metrics with interval, chance and bound, what the attacker has, the guarantee, and the verdict."""
    screen = console()
    screen.print()
    heads = [f"{result.attack}, n = {result.n}", "value", "95% interval", "chance"]
    table = headed([*heads, *(["at most"] if result.bounds else [])], left=1)
    for leakage in result.leakages:
        if not METRICS.owns(leakage.metric):
            continue  # the exposure by number of copies, which has a table of its own
        bound = result.bounds.get(leakage.metric)
        cells = ["" if bound is None else at_most(bound, 4)] if result.bounds else []
        table.add_row(short_label_of(leakage.metric), *cells_of(leakage, ".4g"), *cells)
    screen.print(table)
    print_details(result.details, screen)
    for text in paragraphs(result):
        screen.print(plain(text))
    screen.print(plain(f"{loading:.1f} s to load, {result.seconds:.1f} s to attack."))


def paragraphs(result: AttackResult) -> list[str]:
    """Return what stands below the table: the release, the attacker's knowledge, the guarantee, and the verdict."""
    facts: Mapping[str, Any] = result.release
    lines = [
        f"Model: {describe_release(facts, protection=True)}.",
        describe_knowledge(facts),
        "Privacy of the model: " + describe_guarantee(result),
    ]
    tail = result.details.get("loss_tail")
    if tail:
        lines.append(
            f"Without reference models: {100 * tail['value']:.3g}% of non-members have a larger loss than all but "
            f"{100 * tail['chance']:.3g}% of members (equal shares: nothing is memorized)."
        )
    return [*lines, result.verdict]
