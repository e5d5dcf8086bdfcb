"""`discreet generate`: texts from a trained language model."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from discreet.cli.options import Device, Json, RunFolder, Seed
from discreet.cli.output import as_json, paragraph, working
from discreet.core.errors import ModelError, whole


def generate(
    run: RunFolder,
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue; without it, a text is started.")] = "",
    count: Annotated[int, typer.Option("--count", help="Number of texts.")] = 1,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Largest number of tokens in a text.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 takes the likeliest token, 1 samples from the model.")
    ] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample from this share of the probability.")] = 1.0,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print texts that a trained language model writes.

    What it writes is covered by the guarantee of the run, however often it is
    asked: generation is post-processing. A run without protection may repeat
    its training text.
    """
    began = time.monotonic()
    whole("count", count, 1, "It counts the texts to generate.")
    with working("loading the model"):
        from discreet.core.randomness import Rng
        from discreet.models.language_model import LanguageModel
        from discreet.training.parts import find_device
        from discreet.training.run_folder import load_run

        model = load_run(run, find_device(device)).model
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"Expected the run of a language model at {str(run)!r}, got a model for {model.task}. Train one with "
            "`discreet train DATA --task lm`, or ask this one with `discreet predict`."
        )
    with working(f"generating {count} texts"):
        texts = model.generate(
            prompt, count=count, max_tokens=max_tokens, temperature=temperature, top_p=top_p, rng=Rng(seed)
        )
    if json:
        as_json({"run": str(run), "prompt": prompt, "texts": texts, "seconds": time.monotonic() - began})
        return
    for text in texts:
        paragraph(prompt + text)
