"""`discreet attack`: attack a release of some texts and print what an attacker recovers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import ATTACKS, attack_class, attack_of
from discreet.cli.attack_table import (
    NONE,
    Protected,
    attack_for_run,
    note_different_noise,
    parse_strengths,
    protections_to_attack,
    set_by,
    suggesting_attacks,
)
from discreet.cli.options import Device, Json, Seed, SourceOptions, Threads, generated, parse_settings, use_threads
from discreet.cli.output import as_json, console, note, plain, stop_on_interrupt, working
from discreet.core.errors import invalid, spelled, whole
from discreet.core.files import RUN_DIGEST, digest_of_release
from discreet.core.settings import option_field
from discreet.models.settings import ModelSettings

if TYPE_CHECKING:
    from discreet.attacks.base import Attack
    from discreet.experiment import AttackRequest, AttackResult, Scene

_ATTACK, _RELEASE, _ONE, _MODEL = "Attack", "Release", "1-of-n", "Trained model"
_EXAMPLES = 8
_EXAMPLES_OF_PEOPLE = 100
_SHORTEST_SHOWN = 0.1  # seconds
# What an attack needs, by the kind of release it sees.
_NEEDS = {"gradient": "a gradient", "representation": "vectors", "model": "a trained model (RUN)", "text": "texts"}
# The settings of a fresh model, with the defaults that differ from those of training.
_FRESH = {"encoder": None, "pooling": None, "head": "linear", "train": "all; head for vectors", "embeddings": "yes"}


def attacks_by_need() -> str:
    """Return the attacks grouped by what they need, one paragraph per group.

    >>> attacks_by_need().splitlines()[2].partition(", ")[0]
    'Needs vectors: rss'
    """
    groups = {need: [name for name, entry in ATTACKS.items() if entry.sees == kind] for kind, need in _NEEDS.items()}
    return "\n\n".join(f"Needs {need}: {', '.join(names)}." for need, names in groups.items() if names)


@dataclass(frozen=True)
class AttackOptions:
    """Options of an attack besides those of the data and the model."""

    attack: str | None = option_field(
        None,
        attacks_by_need() + "\n\nOr a plug-in (`discreet names`), or module:Class.",
        _ATTACK,
        "one that fits the run, or dager",
    )
    data: str | None = option_field(
        None, "Text to attack; see DATA in `discreet train --help`.", _ATTACK, "the run's own, or notes"
    )
    examples: int | None = option_field(None, "Number of texts to attack.", _ATTACK, "8, rounded up to full batches")
    batch_size: int | None = option_field(
        None, "Number of texts in one release.", _ATTACK, "1; all of them for vectors"
    )
    seconds: float | None = option_field(
        None, "Time limit of each search.", _ATTACK, "a fixed number of steps, which is reproducible"
    )
    max_words: int | None = option_field(None, "Attack only texts of at most this many words.", _ATTACK)
    first_words: int | None = option_field(
        None, "For gradients: truncate texts to this many words before the release.", _ATTACK
    )
    split: str | None = option_field(None, "Split to attack.", _ATTACK, "train for a run; else validation, test or all")
    public: str | None = option_field(None, "Public text the attacker has.", _ATTACK, "the rows that are not attacked")
    metric: list[str] | None = option_field(None, "Metric to compute; may be repeated.", _ATTACK)
    settings: list[str] | None = option_field(None, "A setting of the attack, NAME=VALUE; may be repeated.", _ATTACK)
    download: bool = option_field(False, "Allow downloading the encoder from the hub.", "Model")
    protect: str | None = option_field(None, "A protection, as in train, or none.", _RELEASE, "the run's own")
    noise_multiplier: list[str] | None = option_field(
        None, "Noise standard deviation over clip norm; 0.1,1 tries both.", _RELEASE
    )
    kappa: list[str] | None = option_field(None, "dir-dp-sgd: concentration; 10,100 tries both.", _RELEASE)
    epsilon: list[str] | None = option_field(None, "Privacy budget of the release; determines the noise.", _RELEASE)
    delta: float | None = option_field(None, "Delta of the release.", _RELEASE, "1e-5, or the run's own")
    clip_norm: float | None = option_field(None, "Gradients of a unit are clipped to this norm.", _RELEASE, "1")
    protect_settings: list[str] | None = option_field(None, "Another setting of the protection, NAME=VALUE.", _RELEASE)
    noise_seed: int | None = option_field(
        None, "Fixed seed of the noise; epsilon is then an estimate.", _RELEASE, "secret"
    )
    candidates: int | None = option_field(None, "Number of candidates.", _ONE, "64; for vectors, the full split")
    draws: int = option_field(20_000, "Simulated releases for each noise level.", _ONE)
    steps: int | None = option_field(
        None,
        "Number of releases of the same record, for 1-of-n and attacks on vectors.",
        _ONE,
        "all updates of the run, or one",
    )
    members: int | None = option_field(
        None, "Number of members, and of non-members, to ask about.", _MODEL, "all for a frozen encoder, else 1000"
    )
    references: int | None = option_field(
        None, "Number of reference models that the attacker trains.", _MODEL, "the attack's"
    )
    plain_references: bool = option_field(False, "Train reference models without the run's protection.", _MODEL)
    references_from: list[str] | None = option_field(
        None,
        "A run, or a folder of runs, to use as reference models; may be repeated.",
        _MODEL,
        "trained for the attack",
    )
    view: str | None = option_field(
        None, "For a recorded federated run, who attacks: server, wire or client-N.", _RELEASE, "server"
    )
    whole_texts: bool = option_field(False, "Print full texts instead of three lines of each.", "Options")


@generated()
def attack(
    options: AttackOptions,
    source: SourceOptions,
    model: Annotated[dict[str, Any], ModelSettings, _FRESH],
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder. Default: a fresh model.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Attack a release of some texts and print each text beside the attacker's guess.

    The attack determines the release: a gradient, vectors, or a trained model.
    The texts are private, and so is the output.
    """
    import time

    start = time.monotonic()
    with working("starting"):
        use_threads(threads)
        from discreet.attacks.base import Family
        from discreet.data.sources import Columns
        from discreet.experiment import AttackRequest, SceneRequest, load_scene
        from discreet.experiment.attack.identification import delta_of_run
        from discreet.models.encoder import unknown_words
        from discreet.releases.description import READS

    if _is_recorded(run, options) and run is not None:
        _attack_recorded(run, options, seed, json)
        return
    name, split = _attack_and_split(options, run)
    chosen, fields = _chosen(name, options)
    if chosen.sees.kind == "model":
        from discreet.cli.model_attack import attack_trained_model

        attack_trained_model(name, chosen, options, run, seed=seed, device=device, json=json, start=start)
        return
    vectors = chosen.sees.kind == "representation"
    strengths = parse_strengths(noise_multiplier=options.noise_multiplier, kappa=options.kappa, epsilon=options.epsilon)
    if options.seconds is not None and not chosen.has_time_limit:
        note(f"--seconds has no effect: {name} does not search.")
    request = _request(name, chosen, options, seed)
    scene_request = SceneRequest(
        source=options.data,
        columns=Columns(source.text, source.text_pair, source.label, source.unit, source.separator, source.quoting),
        # vectors that are released once come from a frozen encoder
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
    protect_settings = parse_settings(options.protect_settings or [], "--protect-set")
    if options.clip_norm is not None:
        protect_settings["clip_norm"] = options.clip_norm
    with working("loading the text, the model and the protection"):
        scene = load_scene(scene_request)
        own_protection = scene.run is not None and options.protect is None and strengths is None
        own_steps = scene.run is not None and chosen.identifies and options.steps is None
        at_own_delta = request
        if scene.run is not None and options.delta is None:
            at_own_delta = dataclasses.replace(request, delta=delta_of_run(scene.run, request.delta))
        if own_protection and vectors:
            request = at_own_delta
        protect = options.protect
        if chosen.family is Family.PEOPLE and own_protection and not _changes(scene, chosen.sees.kind):
            note(f"{name} reads {READS[chosen.sees.kind]}, which the run's protection does not change.")
            protect = NONE
        protections = protections_to_attack(request, scene, protect, strengths, protect_settings)
        if own_steps:
            request = at_own_delta
    if chosen.misled_by_masks and any(one.protect is not None and one.protect.masked for one in protections):
        note("Masks flip signs, which misleads signed cosine similarity; use --set score=least-squares.")
    loading = time.monotonic() - start
    if own_protection:
        note_different_noise(protections[0].protect)
    requested = {one.name for one in dataclasses.fields(AttackRequest)}  # each has an option of its own
    with suggesting_attacks(scene, name, protections), spelled(set_by("--set", fields - requested)):
        results = _run_attacks(request, scene, protections, json, options.whole_texts, own_steps)
    if any(not one.scored.isascii() for result in results for one in result.examples):
        note("ROUGE counts only words of the letters a-z and digits; for these texts, read LCS / longer.")
    if (warning := unknown_words(results[0].unknown_share, scene.model.settings.encoder)) is not None:
        note(warning)
    if json:
        own = own_protection and options.data is None and not protect_settings and len(protections) == 1
        digest = {RUN_DIGEST: scene.run.digest} if own and scene.run is not None else {}
        as_json({**digest, **_values(request, results, protections), "loading": loading})
        return
    _show(results, protections, loading)


def _is_recorded(run: Path | None, options: AttackOptions) -> bool:
    """Return whether the recorded messages of a federated run are attacked, and not a new release."""
    from discreet.experiment.attack.recorded import has_record

    recorded = run is not None and has_record(run) and options.protect is None and options.data is None
    if options.view is not None and not recorded:
        remedy = "Train with `discreet federate --record`, and attack without --data and --protect."
        raise invalid("view", options.view, "used for a recorded federated run", remedy)
    return recorded


def _attack_recorded(run: Path, options: AttackOptions, seed: int, json: bool) -> None:
    """Attack the recorded messages of a federated run."""
    from discreet.cli.attack_table import reading, summary
    from discreet.experiment.attack.recorded import SERVER_VIEW, Recorded
    from discreet.experiment.attack.runner import attack_once
    from discreet.experiment.attack.scoring import metrics_for
    from discreet.runs.folder import read_metrics

    digest = digest_of_release(read_metrics(run))  # an edited run is rejected
    name = options.attack or "dager"
    chosen, _ = _chosen(name, options)
    request = _request(name, chosen, options, seed)
    view = options.view or SERVER_VIEW
    note(f"The recorded messages of the run are attacked, as view {view} holds them: the output is for their owner.")
    if chosen.identifies:
        with working("comparing candidates"):
            result = attack_once(request, Recorded(run, view))
    else:
        main = metrics_for(chosen, request.metrics)[0]
        shown = reading(request.examples, main, hidden=json, whole_texts=options.whole_texts)
        with stop_on_interrupt() as stopping, shown as watch:
            result = attack_once(request, Recorded(run, view), watch=watch, should_stop=lambda: bool(stopping))
    if json:
        as_json({RUN_DIGEST: digest, **result.as_dict()})
    else:
        summary(result, console())


def _chosen(name: str, options: AttackOptions) -> tuple[Attack, set[str]]:
    """Return an attack with its settings from the options, and the names of all its settings."""
    fields = {one.name for one in dataclasses.fields(attack_class(name)) if one.init}  # type: ignore[arg-type]
    with spelled(set_by("--set", fields)):
        return attack_of(name, parse_settings(options.settings or [], "--set")), fields


def _attack_and_split(options: AttackOptions, run: Path | None) -> tuple[str, str | None]:
    """Return the name of the attack and the split to attack; by default those that fit the run."""
    name, split = options.attack, options.split
    if name is None:
        name = "dager" if run is None else attack_for_run(run, options.protect)
        if run is not None:
            note(f"Attack: {name}, which fits this run; --attack selects another.")
    if name == "inversion" and run is not None and _releases_a_model_alone(run, options):
        name = "class-inversion"
        note("The run releases a model and no vectors: class-inversion is used; --protect none attacks vectors.")
    if name in ATTACKS and ATTACKS[name].sees == "model":
        return name, split  # members are training rows, non-members held-out ones
    if run is not None and split is None and options.data is None:
        split = "train"
        note("The training rows of the run are attacked: the output is for their owner, not for release.")
    return name, split


def _releases_a_model_alone(run: Path, options: AttackOptions) -> bool:
    """Return whether gradients were protected in the training of a run, so that no sentence vectors leave."""
    from discreet.runs.folder import read_settings

    if options.protect is not None or not (run / "settings.toml").exists():
        return False
    protect = read_settings(run / "settings.toml").protect
    return protect is not None and protect.place == "gradient"


def _changes(scene: Scene, kind: str) -> bool:
    """Return whether the protection of a run changes what an attack reads."""
    protect = None if scene.run is None else scene.run.settings.protect
    return protect is None or protect.place == kind


def _request(name: str, chosen: Attack, options: AttackOptions, seed: int) -> AttackRequest:
    from discreet.attacks.base import Family
    from discreet.experiment import AttackRequest
    from discreet.experiment.attack.request import DEFAULT_METRICS

    batch_size, examples = options.batch_size, options.examples
    if chosen.family is Family.PEOPLE:
        examples, batch_size = examples or _EXAMPLES_OF_PEOPLE, 1
    if batch_size is None:
        batch_size = (examples or _EXAMPLES) if chosen.sees.kind == "representation" else 1
    whole("batch_size", batch_size, 1, "It is the number of texts in one release.")
    return AttackRequest(
        chosen,
        name=name,
        examples=-(-_EXAMPLES // batch_size) * batch_size if examples is None else examples,
        batch_size=batch_size,
        delta=AttackRequest.delta if options.delta is None else options.delta,
        metrics=tuple(options.metric or DEFAULT_METRICS),
        seed=seed,
        steps=1 if options.steps is None else options.steps,
        **{
            key: getattr(options, key)
            for key in ("max_words", "first_words", "seconds", "noise_seed", "candidates", "draws")
        },
    )


def _run_attacks(
    request: AttackRequest,
    scene: Scene,
    protections: Sequence[Protected],
    json: bool,
    whole_texts: bool,
    own_steps: bool = False,
) -> list[AttackResult]:
    """Attack the same texts under each protection; Ctrl-C stops and returns the results so far.

    With `own_steps`, 1-of-n sees all updates of the run's training, with the batches that were sampled.
    """
    from discreet.attacks.base import Family
    from discreet.cli.attack_table import reading
    from discreet.experiment import attack_once
    from discreet.experiment.attack.identification import updates_of_run
    from discreet.experiment.attack.scoring import metrics_for

    results: list[AttackResult] = []
    people = request.attack.family is Family.PEOPLE
    main = "" if people else metrics_for(request.attack, request.metrics)[0]
    total = request.examples if request.attack.is_ordered else request.examples // request.batch_size
    with stop_on_interrupt() as stopping:
        for protected in protections:
            if len(protections) > 1 and not request.attack.identifies and not json:
                console().print(plain(f"\n{protected.words}"), style="bold")
            one = dataclasses.replace(request, protect=protected.protect)
            if own_steps and scene.run is not None:
                one = dataclasses.replace(one, updates=updates_of_run(scene.run, protected.protect))
            if people or request.attack.identifies:  # neither prints one text after another
                what = f"attacking {request.examples} texts" if people else "comparing candidates"
                with working(f"{what} under {protected.words}"):
                    results.append(attack_once(one, scene))
            else:
                with reading(total, main, hidden=json, whole_texts=whole_texts) as watch:
                    results.append(attack_once(one, scene, watch=watch, should_stop=lambda: bool(stopping)))
            if stopping:
                note("Stopped; the results so far follow.")
                break
    return results


def _values(
    request: AttackRequest, results: Sequence[AttackResult], protections: Sequence[Protected]
) -> dict[str, Any]:
    """Return the values for --json: the result, or all results in order if there are several strengths."""
    if len(protections) == 1:
        return results[0].as_dict()
    return {
        "attack": request.label,
        "n": results[0].n,
        "sweep": [result.as_dict() for result in results],
        "seconds": sum(result.seconds for result in results),
    }


def _show(results: Sequence[AttackResult], protections: Sequence[Protected], loading: float) -> None:
    from discreet.cli.attack_table import describe_stopped, summary, sweep

    screen = console()
    screen.print()
    if len(results) == 1 and results[0].bound is None:
        summary(results[0], screen)
    else:
        sweep(results, [one.value for one in protections[: len(results)]], protections[0].setting, screen)
    total, preparing = (sum(getattr(result, name) for result in results) for name in ("seconds", "preparing"))
    prepared = f", {preparing:.1f} s to prepare the attacker's knowledge" if preparing >= _SHORTEST_SHOWN else ""
    screen.print(plain(f"{loading:.1f} s to load{prepared}, {total - preparing:.1f} s to attack."))
    if stopped := sum(result.stopped for result in results):
        screen.print(plain(describe_stopped(stopped)))
