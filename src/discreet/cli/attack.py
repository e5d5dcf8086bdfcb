"""`discreet attack`: what somebody who sees a release reads in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import ATTACKS, attack_of
from discreet.cli.attack_strengths import (
    Protected,
    attack_for_run,
    naming_others,
    protections_asked,
    say_other_noise,
    strengths_given,
)
from discreet.cli.options import (
    Device,
    Json,
    Label,
    Quoting,
    Rows,
    Seed,
    Separator,
    Share,
    Text,
    TextPair,
    Unit,
    settings_given,
)
from discreet.cli.output import as_json, console, note, plain, stop_on_interrupt
from discreet.cli.progress import working
from discreet.cli.threads import Threads, use_threads
from discreet.core.checks import whole

if TYPE_CHECKING:
    from discreet.experiment import AttackRequest, AttackResult, Scene

_MODEL, _PRIVACY, _ONE, _COLUMNS = "Model", "Release", "1-of-n", "Data"
_EXAMPLES = 8
_WORTH_TELLING = 0.1  # seconds


def attack(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder; without it, a fresh model.")] = None,
    attack: Annotated[
        str | None, typer.Option("--attack", help=", ".join(ATTACKS) + ". Default: one that fits the run, or dager.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="As for train; the run's own, or notes.")] = None,
    examples: Annotated[int | None, typer.Option(help="Texts to attack; 8, or a whole batch.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts in one release; 1, or all of them for vectors.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Upper limit on the time of each search; without it, its steps are counted.")
    ] = None,
    max_words: Annotated[int | None, typer.Option(help="Attack only texts of at most this many words.")] = None,
    first_words: Annotated[
        int | None, typer.Option(help="Release only so many first words of each text; for gradients.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split to attack; a run's training rows, else validation, test or all.")
    ] = None,
    public: Annotated[
        str | None, typer.Option("--public", help="Text the attacker has; else the rows that are not attacked.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="What to measure; several times for several.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of the attack, NAME=VALUE.")] = None,
    model: Annotated[
        str, typer.Option("--model", help="minilm, bilstm, a folder, or a hub name.", rich_help_panel=_MODEL)
    ] = "minilm",
    parts: Annotated[
        str | None,
        typer.Option("--train", help="What is trained, so released: all; head for vectors.", rich_help_panel=_MODEL),
    ] = None,
    embeddings: Annotated[bool, typer.Option(help="Word vectors are trained too.", rich_help_panel=_MODEL)] = True,
    pooling: Annotated[str, typer.Option(help="cls, mean or last.", rich_help_panel=_MODEL)] = "mean",
    head: Annotated[str, typer.Option(help="linear or mlp.", rich_help_panel=_MODEL)] = "linear",
    download: Annotated[
        bool, typer.Option("--download", help="Allow fetching the encoder from the hub.", rich_help_panel=_MODEL)
    ] = False,
    protect: Annotated[
        str | None, typer.Option("--protect", help="As for train, or none; the run's own.", rich_help_panel=_PRIVACY)
    ] = None,
    noise_multiplier: Annotated[
        list[str] | None, typer.Option(help="Noise over clip norm; 0.1,1 tries both.", rich_help_panel=_PRIVACY)
    ] = None,
    kappa: Annotated[
        list[str] | None, typer.Option(help="Concentration of dir-dp-sgd, one or several.", rich_help_panel=_PRIVACY)
    ] = None,
    epsilon: Annotated[
        list[str] | None, typer.Option(help="Of the one release; the noise is solved.", rich_help_panel=_PRIVACY)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Of the release; 1e-5, or the run's own.", rich_help_panel=_PRIVACY),
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Longest gradient of one unit; 1.", rich_help_panel=_PRIVACY)
    ] = None,
    protect_settings: Annotated[
        list[str] | None,
        typer.Option("--protect-set", help="Another setting of the protection, NAME=VALUE.", rich_help_panel=_PRIVACY),
    ] = None,
    noise_seed: Annotated[
        int | None, typer.Option(help="Repeatable noise; epsilon is then an estimate.", rich_help_panel=_PRIVACY)
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="One of how many: 64; for vectors, the whole split.", rich_help_panel=_ONE)
    ] = None,
    draws: Annotated[int, typer.Option(help="Simulated releases for each noise.", rich_help_panel=_ONE)] = 20_000,
    steps: Annotated[
        int | None,
        typer.Option(help="Releases of the same record; else all updates of the run, or one.", rich_help_panel=_ONE),
    ] = None,
    text: Text = "text",
    text_pair: TextPair = None,
    label: Label = "label",
    unit: Unit = None,
    separator: Separator = None,
    quoting: Quoting = None,
    rows: Rows = None,
    share: Share = None,
    seed: Seed = 0,
    device: Device = "auto",
    whole_texts: Annotated[
        bool, typer.Option("--whole-texts", help="Print texts whole, not three lines of each.")
    ] = False,
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Attack what would be released of some texts, and print what was read beside what was written.

    The attack's kind picks the release: a gradient, or representations. The texts are private: so is the output.
    """
    import time

    began = time.monotonic()
    with working("starting"):
        use_threads(threads)
        from discreet.data.sources import Columns
        from discreet.experiment import AttackRequest, SceneRequest, load_scene
        from discreet.experiment.identification import delta_of_run
        from discreet.experiment.scoring import DEFAULT_METRICS
        from discreet.models.classifier import ModelSettings
        from discreet.models.spelling import unknown_words

    if attack is None:
        attack = "dager" if run is None else attack_for_run(run, protect)
        if run is not None:
            note(f"Attack: {attack}, as it fits this run; --attack names another.")
    if run is not None and split is None and data is None:
        split = "train"
        note("The training rows of the run are attacked: what follows is for their owner, not for release.")
    chosen = attack_of(attack, settings_given(settings or [], "--set"))
    vectors = chosen.sees.kind == "representation"
    strengths = strengths_given(noise_multiplier=noise_multiplier, kappa=kappa, epsilon=epsilon)
    if batch_size is None:
        batch_size = (examples or _EXAMPLES) if vectors else 1
    whole("batch_size", batch_size, 1, "It counts the texts in one release.")
    if seconds is not None and not chosen.has_time_limit:
        note(f"--seconds changes nothing: {attack} does not search, it ends by itself.")
    request = AttackRequest(
        chosen,
        name=attack,
        examples=-(-_EXAMPLES // batch_size) * batch_size if examples is None else examples,
        batch_size=batch_size,
        max_words=max_words,
        first_words=first_words,
        seconds=seconds,
        delta=AttackRequest.delta if delta is None else delta,
        metrics=tuple(metric or DEFAULT_METRICS),
        seed=seed,
        noise_seed=noise_seed,
        candidates=candidates,
        draws=draws,
        steps=1 if steps is None else steps,
    )
    asked = SceneRequest(
        source=data,
        columns=Columns(text, text_pair, label, unit, separator, quoting),
        model=ModelSettings(
            encoder=model,
            pooling=pooling,
            head=head,
            # vectors that are released once come from an encoder that stays as it is
            train=parts or ("head" if vectors else "all"),
            embeddings=embeddings,
            dropout=0.0,
        ),
        run=run,
        split=split,
        public=public,
        rows=rows,
        share=share,
        seed=seed,
        device=device,
        download=download,
    )
    given = settings_given(protect_settings or [], "--protect-set")
    if clip_norm is not None:
        given["clip_norm"] = clip_norm
    with working("loading the text and the model, making the protection"):
        scene = load_scene(asked)
        own_protection = protect is None and strengths is None and scene.run is not None
        if own_protection and delta is None and vectors and scene.run is not None:
            request = dataclasses.replace(request, delta=delta_of_run(scene.run, request.delta))
        protections = protections_asked(request, scene, protect, strengths, given)
    if chosen.misled_by_masks and any(one.protect is not None and one.protect.masked for one in protections):
        note("Masks flip signs, by which signed cosine goes: --set score=least-squares reads through them.")
    loading = time.monotonic() - began
    own_steps = chosen.identifies and steps is None and scene.run is not None
    if own_steps and delta is None and scene.run is not None:
        request = dataclasses.replace(request, delta=delta_of_run(scene.run, request.delta))
    if own_protection:
        say_other_noise(protections[0].protect)
    with naming_others(scene, attack, protections):
        results = _attacked(request, scene, protections, json, whole_texts, own_steps)
    if any(not one.scored.isascii() for result in results for one in result.examples):
        note("ROUGE counts words of the letters a to z and digits alone; for these texts, read LCS / longer.")
    if (said := unknown_words(results[0].unknown_share, scene.model.settings.encoder)) is not None:
        note(said)
    if json:
        as_json({**_values(request, results, protections), "loading": loading})
        return
    _show(results, protections, loading)


def _attacked(
    request: AttackRequest,
    scene: Scene,
    protections: Sequence[Protected],
    json: bool,
    whole_texts: bool,
    own_steps: bool = False,
) -> list[AttackResult]:
    """Attack the same texts under each protection in turn; Ctrl-C ends with what was read so far.

    With `own_steps` 1-of-n reads all updates of the run's training, as they were drawn.
    """
    from dataclasses import replace

    from discreet.cli.attack_table import reading
    from discreet.experiment import run_attack
    from discreet.experiment.identification import updates_of_run
    from discreet.experiment.scoring import metrics_for

    results: list[AttackResult] = []
    main = metrics_for(request.attack, request.metrics)[0]
    total = request.examples if request.attack.is_ordered else request.examples // request.batch_size
    with stop_on_interrupt() as asked:
        for each in protections:
            if len(protections) > 1 and not request.attack.identifies and not json:
                console().print(plain(f"\n{each.words}"), style="bold")
            one = replace(request, protect=each.protect)
            if own_steps and scene.run is not None:
                one = replace(one, updates=updates_of_run(scene.run, each.protect))
            if request.attack.identifies:  # nothing is read there: candidates are compared
                with working(f"comparing candidates under {each.words}"):
                    results.append(run_attack(one, scene))
            else:
                with reading(total, main, hidden=json, whole_texts=whole_texts) as watch:
                    results.append(run_attack(one, scene, watch=watch, should_stop=lambda: bool(asked)))
            if asked:
                note("Stopped; what was read so far follows.")
                break
    return results


def _values(
    request: AttackRequest, results: Sequence[AttackResult], protections: Sequence[Protected]
) -> dict[str, Any]:
    """Return what --json prints: the result, or for several strengths all of them in order."""
    if len(protections) == 1:
        return results[0].as_dict()
    return {
        "attack": request.label,
        "n": results[0].n,
        "sweep": [result.as_dict() for result in results],
        "seconds": sum(result.seconds for result in results),
    }


def _show(results: Sequence[AttackResult], protections: Sequence[Protected], loading: float) -> None:
    from discreet.cli.attack_table import stopped_words, summary, sweep

    screen = console()
    screen.print()
    if len(results) == 1 and results[0].bound is None:
        summary(results[0], screen)
    else:
        sweep(results, [each.value for each in protections[: len(results)]], protections[0].setting, screen)
    whole, preparing = (sum(getattr(result, name) for result in results) for name in ("seconds", "preparing"))
    prepared = f", {preparing:.1f} s to prepare what the attacker knows" if preparing >= _WORTH_TELLING else ""
    screen.print(plain(f"{loading:.1f} s to load{prepared}, {whole - preparing:.1f} s to attack."))
    if stopped := sum(result.stopped for result in results):
        screen.print(plain(stopped_words(stopped)))
