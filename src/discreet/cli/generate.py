"""`discreet generate`: generate texts with a trained language model."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from discreet.cli.options import Device, Json, RunFolder, Seed
from discreet.cli.output import as_json, paragraph, working
from discreet.core.errors import ModelError, whole


def generate(
    run: RunFolder,
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue. Default: none.")] = "",
    count: Annotated[int, typer.Option("--count", help="Number of texts.")] = 1,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Maximum number of tokens in a text.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 selects the most likely token, 1 samples from the model.")
    ] = 1.0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Sample from the most likely tokens with this total probability.")
    ] = 1.0,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Generate texts with a trained language model.

    The guarantee of the run covers all generated texts, however many:
    generation is post-processing. A run without protection may repeat its
    training text.
    """
    start = time.monotonic()
    whole("count", count, 1, "It is the number of texts to generate.")
    with working("loading the model"):
        from discreet.core.device import find_device
        from discreet.core.randomness import Rng
        from discreet.models.language_model import LanguageModel
        from discreet.runs.folder import load_run

        model = load_run(run, find_device(device)).model
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"Expected the run of a language model at {str(run)!r}, got a model for {model.task}. Train one with "
            "`discreet train DATA --task lm`, or use this one with `discreet predict`."
        )
    with working("generating 1 text" if count == 1 else f"generating {count:,} texts"):
        texts = model.generate(
            prompt, count=count, max_tokens=max_tokens, temperature=temperature, top_p=top_p, rng=Rng(seed)
        )
    if json:
        as_json({"run": str(run), "prompt": prompt, "texts": texts, "seconds": time.monotonic() - start})
        return
    for text in texts:
        paragraph(prompt + text)
