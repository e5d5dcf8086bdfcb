"""`discreet train`: from text to a run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli.options import Data, Device, Json, Label, Seed, Text, TextPair, Unit
from discreet.cli.output import as_json, note, stop_on_interrupt, table
from discreet.cli.progress import training_bar


def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    model: Annotated[str, typer.Option("--model", help="minilm, bilstm, a folder, or a hub name.")] = "minilm",
    parts: Annotated[
        str, typer.Option("--train", help="What is trained: head, pooler+head, top-N (the last N blocks) or all.")
    ] = "all",
    pooling: Annotated[str, typer.Option(help="How states become one vector: cls, mean or last.")] = "mean",
    head: Annotated[str, typer.Option(help="linear or mlp.")] = "linear",
    epochs: Annotated[float | None, typer.Option(help="Passes over the text; 3, or 20 with a frozen encoder.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.")] = 32,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate; by what is trained.")] = None,
    warmup: Annotated[float, typer.Option(help="Share of the steps in which the learning rate rises.")] = 0.06,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of matrices.")] = 0.01,
    dropout: Annotated[float | None, typer.Option(help="Dropout; the encoder's own if not given.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut texts to this many tokens.")] = None,
    accumulate: Annotated[int, typer.Option(help="Read a batch in this many parts, to save memory.")] = 1,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without improvement and keep the best.")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto (bf16 on a GPU), float32 or bf16.")] = "auto",
    text: Text = "text",
    text_pair: TextPair = None,
    label: Label = "label",
    unit: Unit = None,
    rows: Annotated[int | None, typer.Option(help="Notes to generate, for the built-in corpora.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Save progress this often.")] = 30.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    download: Annotated[bool, typer.Option("--download", help="Allow fetching the encoder from the hub.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep outputs of a frozen encoder (they hold private text).")
    ] = True,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier and write a run folder.

    The folder holds the model, its tokenizer, settings, metrics and a model card.
    """
    from discreet.data.sources import Columns
    from discreet.experiment import RunRequest, run_training
    from discreet.models.classifier import ModelSettings
    from discreet.training.settings import TrainSettings

    frozen = parts in {"head", "pooler+head"}
    request = RunRequest(
        source=data,
        columns=Columns(text=text, text_pair=text_pair, label=label, unit=unit),
        model=ModelSettings(
            encoder=model, pooling=pooling, head=head, train=parts, dropout=dropout, max_length=max_length
        ),
        train=TrainSettings(
            epochs=epochs if epochs is not None else (20.0 if frozen else 3.0),
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup=warmup,
            weight_decay=weight_decay,
            accumulate=accumulate,
            patience=patience,
            precision=precision,
        ),
        seed=seed,
        rows=rows,
    )
    with stop_on_interrupt() as asked, training_bar() as watch:
        done = run_training(
            request,
            out,
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
    table(done["utility"], title=f"Utility on the {done['evaluated_on']} split")
    promise = done["guarantee"]
    print("Privacy: " + (promise["sentence"] if promise else "no guarantee, this training was not protected."))
    print(f"Written to {out} in {done['seconds']:.1f} s.")


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
