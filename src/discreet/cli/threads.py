"""How many threads a command computes with."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from discreet.core.errors import whole

Threads = Annotated[int, typer.Option(help="Number of CPU threads; one is usually fastest.")]


def use_threads(threads: int) -> None:
    """Let torch compute with so many threads; before torch is imported the libraries below it are told too."""
    whole("threads", threads, 1, "One is usually best.")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)
