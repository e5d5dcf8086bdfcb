"""`discreet train`: from text to a run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from discreet.cli.options import Data, Device, Json, Label, Seed, Text, TextPair, Unit
from discreet.cli.output import as_json, note, paragraph, stop_on_interrupt, table
from discreet.cli.progress import training_bar
from discreet.core.checks import positive, refuse

_MODEL, _TRAINING, _PRIVACY, _COLUMNS = "Model", "Training", "Privacy", "Data"


def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    model: Annotated[
        str, typer.Option("--model", help="minilm, bilstm, a folder, or a hub name.", rich_help_panel=_MODEL)
    ] = "minilm",
    parts: Annotated[
        str,
        typer.Option("--train", help="What is trained: head, pooler+head, top-N or all.", rich_help_panel=_MODEL),
    ] = "all",
    pooling: Annotated[
        str, typer.Option(help="How states become one vector: cls, mean or last.", rich_help_panel=_MODEL)
    ] = "mean",
    head: Annotated[str, typer.Option(help="linear or mlp.", rich_help_panel=_MODEL)] = "linear",
    pooler: Annotated[
        bool | None, typer.Option(help="A dense layer with tanh before the head.", rich_help_panel=_MODEL)
    ] = None,
    embeddings: Annotated[
        bool | None, typer.Option(help="Train word vectors too; not by default if private.", rich_help_panel=_MODEL)
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Dropout; the encoder's own, none if private.", rich_help_panel=_MODEL)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Cut texts to this many tokens.", rich_help_panel=_MODEL)
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Allow fetching the encoder from the hub.", rich_help_panel=_MODEL)
    ] = False,
    protect: Annotated[
        str | None, typer.Option("--protect", help="dp-sgd or dir-dp-sgd.", rich_help_panel=_PRIVACY)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of the whole training; the noise is solved.", rich_help_panel=_PRIVACY)
    ] = None,
    delta: Annotated[
        str, typer.Option(help="auto is a tenth of one over the units.", rich_help_panel=_PRIVACY)
    ] = "auto",
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over clip norm, instead of a budget.", rich_help_panel=_PRIVACY)
    ] = None,
    true_positive_rate: Annotated[
        float | None,
        typer.Option(help="The most any membership attack may reach, instead.", rich_help_panel=_PRIVACY),
    ] = None,
    false_positive_rate: Annotated[
        float, typer.Option(help="At this share of false alarms.", rich_help_panel=_PRIVACY)
    ] = 0.01,
    clip_norm: Annotated[float, typer.Option(help="Longest gradient of one unit.", rich_help_panel=_PRIVACY)] = 0.1,
    clipping: Annotated[str, typer.Option(help="flat, per-layer or automatic.", rich_help_panel=_PRIVACY)] = "flat",
    kappa: Annotated[float | None, typer.Option(help="Concentration of dir-dp-sgd.", rich_help_panel=_PRIVACY)] = None,
    partition: Annotated[
        str, typer.Option(help="Directions of dir-dp-sgd: whole or layers.", rich_help_panel=_PRIVACY)
    ] = "whole",
    noise_seed: Annotated[
        int | None, typer.Option(help="Repeatable noise for experiments; keep it secret.", rich_help_panel=_PRIVACY)
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the text; by what is trained.", rich_help_panel=_TRAINING)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows, or units if private, in a batch.", rich_help_panel=_TRAINING)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest learning rate.", rich_help_panel=_TRAINING)
    ] = None,
    warmup: Annotated[
        float, typer.Option(help="Share of steps in which the rate rises.", rich_help_panel=_TRAINING)
    ] = 0.06,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay of matrices.", rich_help_panel=_TRAINING)
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.", rich_help_panel=_TRAINING)] = "adamw",
    accumulate: Annotated[int, typer.Option(help="Read a batch in this many parts.", rich_help_panel=_TRAINING)] = 1,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without improvement before it stops.", rich_help_panel=_TRAINING)
    ] = None,
    precision: Annotated[
        str, typer.Option(help="auto (bf16 on a GPU), float32 or bf16.", rich_help_panel=_TRAINING)
    ] = "auto",
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Save progress this often.", rich_help_panel=_TRAINING)
    ] = 30.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.", rich_help_panel=_TRAINING)
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep a frozen encoder's outputs.", rich_help_panel=_TRAINING)
    ] = True,
    text: Text = "text",
    text_pair: TextPair = None,
    label: Label = "label",
    unit: Unit = None,
    rows: Annotated[int | None, typer.Option(help="Keep this many training rows, or make this many notes.")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression, if labels leave it open.")] = None,
    validation: Annotated[str | None, typer.Option(help="File with held-out rows; else a tenth is held out.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier and write a run folder.

    It holds model, tokenizer, settings, metrics, a model card and, with --protect, the ledger.
    """
    from discreet.data.sources import Columns
    from discreet.experiment import RunRequest, load_corpus, run_training
    from discreet.models.classifier import ModelSettings
    from discreet.protections.settings import ProtectSettings
    from discreet.training.defaults import defaults_for
    from discreet.training.settings import TrainSettings

    protection = None
    if protect is not None:
        protection = ProtectSettings(
            name=protect,
            epsilon=epsilon,
            delta=_delta(delta),
            noise_multiplier=noise_multiplier,
            true_positive_rate=true_positive_rate,
            false_positive_rate=false_positive_rate,
            clip_norm=clip_norm,
            clipping=clipping,
            kappa=kappa,
            partition=partition,
        )
    else:
        for name, value in (("epsilon", epsilon), ("noise-multiplier", noise_multiplier), ("kappa", kappa)):
            if value is not None:
                raise refuse(name, value, "together with --protect", "Add --protect dp-sgd, or leave it out.")
    positive("checkpoint-seconds", checkpoint_seconds)
    chosen = ModelSettings(encoder=model, pooling=pooling, head=head, train=parts, pooler=pooler, max_length=max_length)
    request = RunRequest(
        source=data,
        columns=Columns(text=text, text_pair=text_pair, label=label, unit=unit),
        model=chosen,
        train=TrainSettings(warmup=warmup, optimizer=optimizer, patience=patience, precision=precision),
        protect=protection,
        seed=seed,
        rows=rows,
        noise_seed=noise_seed,
        validation=validation,
        task=_task(task),
    )
    corpus = load_corpus(request)
    usual = defaults_for(parts, protect, corpus.split("train").unit_count)
    request = request.tuned(
        usual,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        dropout=dropout,
        embeddings=embeddings,
        accumulate=accumulate,
    )
    with stop_on_interrupt() as asked, training_bar() as watch:
        done = run_training(
            request,
            out,
            corpus=corpus,
            device=device,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            download=download,
            cache=cache,
            watch=watch,
            say=note,
            should_stop=lambda: bool(asked),
        )
    if not done["finished"]:
        note(f"Stopped at step {done['steps']} and saved. Go on with the same command and --resume.")
        raise typer.Exit(130)
    if json:
        as_json(_finite(done))
        return
    if done["utility"]:
        table(done["utility"], title=f"Utility on the {done['evaluated_on']} split")
    else:
        print("Utility: not measured, as no rows were held out.")
    _say_privacy(done)
    print(f"Written to {out} in {done['seconds']:.1f} s.")


def _task(name: str | None) -> Literal["classification", "regression"] | None:
    if name is None or name == "classification" or name == "regression":
        return name  # type: ignore[return-value]
    raise refuse("task", name, "in classification, regression", "")


def _delta(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise refuse("delta", text, "auto or a number in (0, 1)", "auto is a tenth of one over the units.") from None


def _say_privacy(done: dict[str, Any]) -> None:
    promise = done["guarantee"]
    if promise is None:
        print("Privacy: no guarantee, this training was not protected.")
        return
    paragraph("Privacy: " + promise["sentence"])
    columns = {
        f"epsilon, {name}": "not defined here" if value is None else f"{value:.4g}"
        for name, value in done["epsilon_by_adjacency"].items()
    }
    if "pure_epsilon" in done:
        columns["pure epsilon over all steps"] = f"{done['pure_epsilon']:.6g}"
        columns["metric epsilon per use and distance"] = f"{done['metric_epsilon_per_use']:.6g}"
    kind = "" if promise["certified"] else " (estimates, for the reason above)"
    table(columns, title=f"The same training, delta = {promise['delta']:.3g}, under each adjacency{kind}")


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
