"""`discreet attack`: what somebody who sees a release reads in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import ATTACKS, attack_class, attack_of
from discreet.cli.attack_table import (
    Protected,
    attack_for_run,
    naming_others,
    protections_asked,
    say_other_noise,
    set_by,
    strengths_given,
)
from discreet.cli.options import Device, Json, Seed, SourceOptions, Threads, generated, settings_given, use_threads
from discreet.cli.output import as_json, console, note, plain, stop_on_interrupt, working
from discreet.core.errors import spelled, whole
from discreet.core.settings import option
from discreet.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from discreet.experiment import AttackRequest, AttackResult, Scene

_ATTACK, _RELEASE, _ONE = "Attack", "Release", "1-of-n"
_EXAMPLES = 8
_WORTH_TELLING = 0.1  # seconds
# What an attack needs, by the kind of release that it sees.
_NEEDS = {"gradient": "a gradient", "representation": "vectors", "model": "a model"}
# The settings of a fresh model, and the defaults that are not those of training.
_FRESH = {"encoder": None, "pooling": None, "head": "linear", "train": "all; head for vectors", "embeddings": "yes"}


def attacks_by_need() -> str:
    """Return the attacks grouped by what they need, one group in a paragraph.

    >>> attacks_by_need().splitlines()[2].partition(", ")[0]
    'Needs vectors: rss'
    """
    groups = {need: [name for name, entry in ATTACKS.items() if entry.sees == kind] for kind, need in _NEEDS.items()}
    return "\n\n".join(f"Needs {need}: {', '.join(names)}." for need, names in groups.items() if names)


@dataclass(frozen=True)
class AttackOptions:
    """The options of an attack that are neither columns of the text nor settings of the model."""

    attack: str | None = field(
        default=None, metadata=option(attacks_by_need(), _ATTACK, "one that fits the run, or dager")
    )
    data: str | None = field(
        default=None, metadata=option("Text to attack, as for train.", _ATTACK, "the run's own, or notes")
    )
    examples: int | None = field(
        default=None, metadata=option("Number of texts to attack.", _ATTACK, "8, or a whole batch")
    )
    batch_size: int | None = field(
        default=None, metadata=option("Texts in one release.", _ATTACK, "1; all of them for vectors")
    )
    seconds: float | None = field(
        default=None,
        metadata=option(
            "Time limit of each search.", _ATTACK, "a fixed number of steps, so that results can be repeated"
        ),
    )
    max_words: int | None = field(
        default=None, metadata=option("Attack only texts of at most this many words.", _ATTACK)
    )
    first_words: int | None = field(
        default=None,
        metadata=option("Truncate texts to this many words before they are released; for gradients.", _ATTACK),
    )
    split: str | None = field(
        default=None,
        metadata=option("Split to attack.", _ATTACK, "the run's training rows; else validation, test or all"),
    )
    public: str | None = field(
        default=None, metadata=option("Text that the attacker has.", _ATTACK, "the rows that are not attacked")
    )
    metric: list[str] | None = field(default=None, metadata=option("What to measure; may be repeated.", _ATTACK))
    settings: list[str] | None = field(
        default=None,
        metadata=option("A setting of the attack, NAME=VALUE; may be repeated.", _ATTACK) | {"flag": "--set"},
    )
    download: bool = field(default=False, metadata=option("Allow downloading the encoder from the hub.", "Model"))
    protect: str | None = field(
        default=None, metadata=option("A protection as for train, or none.", _RELEASE, "the run's own")
    )
    noise_multiplier: list[str] | None = field(
        default=None, metadata=option("Noise over clip norm; 0.1,1 tries both.", _RELEASE)
    )
    kappa: list[str] | None = field(
        default=None, metadata=option("dir-dp-sgd: concentration, one or several.", _RELEASE)
    )
    epsilon: list[str] | None = field(
        default=None, metadata=option("Budget of the one release; the noise is computed from it.", _RELEASE)
    )
    delta: float | None = field(
        default=None, metadata=option("Delta of the release.", _RELEASE, "1e-5, or the run's own")
    )
    clip_norm: float | None = field(
        default=None, metadata=option("Gradients of a unit are clipped to this norm.", _RELEASE, "1")
    )
    protect_settings: list[str] | None = field(
        default=None,
        metadata=option("Another setting of the protection, NAME=VALUE.", _RELEASE) | {"flag": "--protect-set"},
    )
    noise_seed: int | None = field(
        default=None, metadata=option("Repeatable noise; epsilon is then an estimate.", _RELEASE, "secret")
    )
    candidates: int | None = field(
        default=None, metadata=option("Number of candidates.", _ONE, "64; for vectors, the whole split")
    )
    draws: int = field(default=20_000, metadata=option("Simulated releases for each noise.", _ONE))
    steps: int | None = field(
        default=None, metadata=option("Releases of the same record.", _ONE, "all updates of the run, or one")
    )
    whole_texts: bool = field(default=False, metadata=option("Print texts whole, not three lines of each.", "Options"))


@generated()
def attack(
    options: AttackOptions,
    source: SourceOptions,
    model: Annotated[dict[str, Any], ModelSettings, _FRESH],
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder; without it, a fresh model.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Attack what is released of some texts, and print what the attacker reads beside them.

    The attack decides what is released: a gradient, or vectors.
    The texts are private, and so is the output.
    """
    import time

    began = time.monotonic()
    with working("starting"):
        use_threads(threads)
        from discreet.data.sources import Columns
        from discreet.experiment import AttackRequest, SceneRequest, load_scene
        from discreet.experiment.attack import DEFAULT_METRICS
        from discreet.experiment.identification import delta_of_run
        from discreet.models.encoder import unknown_words

    name, split = options.attack, options.split
    if name is None:
        name = "dager" if run is None else attack_for_run(run, options.protect)
        if run is not None:
            note(f"Attack: {name}, as it fits this run; --attack names another.")
    if run is not None and split is None and options.data is None:
        split = "train"
        note("The training rows of the run are attacked: what follows is for their owner, not for release.")
    own = [one.name for one in dataclasses.fields(attack_class(name)) if one.init]  # type: ignore[arg-type]
    with spelled(set_by("--set", own)):
        chosen = attack_of(name, settings_given(options.settings or [], "--set"))
    vectors = chosen.sees.kind == "representation"
    strengths = strengths_given(noise_multiplier=options.noise_multiplier, kappa=options.kappa, epsilon=options.epsilon)
    batch_size, examples, delta = options.batch_size, options.examples, options.delta
    if batch_size is None:
        batch_size = (examples or _EXAMPLES) if vectors else 1
    whole("batch_size", batch_size, 1, "It counts the texts in one release.")
    if options.seconds is not None and not chosen.has_time_limit:
        note(f"--seconds changes nothing: {name} does not search, it ends by itself.")
    request = AttackRequest(
        chosen,
        name=name,
        examples=-(-_EXAMPLES // batch_size) * batch_size if examples is None else examples,
        batch_size=batch_size,
        max_words=options.max_words,
        first_words=options.first_words,
        seconds=options.seconds,
        delta=AttackRequest.delta if delta is None else delta,
        metrics=tuple(options.metric or DEFAULT_METRICS),
        seed=seed,
        noise_seed=options.noise_seed,
        candidates=options.candidates,
        draws=options.draws,
        steps=1 if options.steps is None else options.steps,
    )
    asked = SceneRequest(
        source=options.data,
        columns=Columns(source.text, source.text_pair, source.label, source.unit, source.separator, source.quoting),
        # vectors that are released once come from an encoder that stays as it is
        model=ModelSettings(**{"train": "head" if vectors else "all", "dropout": 0.0, **model}),
        run=run,
        split=split,
        public=options.public,
        rows=source.rows,
        share=source.share,
        seed=seed,
        device=device,
        download=options.download,
    )
    given = settings_given(options.protect_settings or [], "--protect-set")
    if options.clip_norm is not None:
        given["clip_norm"] = options.clip_norm
    with working("loading the text and the model, making the protection"):
        scene = load_scene(asked)
        own_protection = options.protect is None and strengths is None and scene.run is not None
        if own_protection and delta is None and vectors and scene.run is not None:
            request = dataclasses.replace(request, delta=delta_of_run(scene.run, request.delta))
        protections = protections_asked(request, scene, options.protect, strengths, given)
    if chosen.misled_by_masks and any(one.protect is not None and one.protect.masked for one in protections):
        note("Masks flip signs, by which signed cosine goes: --set score=least-squares reads through them.")
    loading = time.monotonic() - began
    own_steps = chosen.identifies and options.steps is None and scene.run is not None
    if own_steps and delta is None and scene.run is not None:
        request = dataclasses.replace(request, delta=delta_of_run(scene.run, request.delta))
    if own_protection:
        say_other_noise(protections[0].protect)
    requested = {one.name for one in dataclasses.fields(AttackRequest)}  # each has an option of its own
    with naming_others(scene, name, protections), spelled(set_by("--set", set(own) - requested)):
        results = _attacked(request, scene, protections, json, options.whole_texts, own_steps)
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
    from discreet.experiment.attack import metrics_for
    from discreet.experiment.identification import updates_of_run

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
