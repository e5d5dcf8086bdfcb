"""How many files of the package one reads to follow a command: those with a function that runs while it does.

python -m tools.walk                  train, attack lira, federate, make_private: the number of files of each
python -m tools.walk attack           the files of one of them, in the order in which they are entered
python -m tools.walk train notes --protect texthide --rows 200    any command

Files are counted by function frames (`sys.setprofile`), in this process and its threads, over the whole command.
Modules that are only imported do not count, and neither do functions that an import calls, class bodies and lambdas.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "discreet"
_SMALL = ["--rows", "200", "--train", "head"]
_SGD = ["--protect", "dp-sgd", "--epsilon", "3"]


def walk(run: Callable[[], Any]) -> list[str]:
    """Return the files whose functions run, in the order in which they are entered."""
    entered: dict[str, None] = {}
    here = threading.local()  # how many imports are under way in a thread

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in {"call", "return"}:
            here.imports = getattr(here, "imports", 0) + (1 if event == "call" else -1)
        if getattr(here, "imports", 0):
            return
        if event != "call" or code.co_name in {"<module>", "<lambda>"} or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_qualname == code.co_name.strip("<>") and code.co_name.lstrip("_")[:1].isupper():
            return  # a class body
        entered.setdefault(Path(code.co_filename).relative_to(PACKAGE).as_posix())

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(entered)


def command(*words: str) -> Callable[[], None]:
    """Return a function that runs a command; what it prints is dropped."""

    def run() -> None:
        from discreet.cli.main import main

        with contextlib.redirect_stdout(io.StringIO()):
            status = main(list(words))
        if status:
            raise SystemExit(f"discreet {' '.join(words)} ended with {status}.")

    return run


def own_loop() -> None:
    """Train a small module in a loop with `make_private`."""
    import torch

    import discreet

    model = torch.nn.Linear(2, 1)
    rows = [(torch.tensor([i % 5, i % 7.0]), torch.tensor([i % 3.0])) for i in range(40)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def losses_of(part: list[torch.Tensor]) -> torch.Tensor:
        return (model(part[0]) - part[1]).square().sum(1)

    with discreet.make_private(model, discreet.DPSGD(epsilon=8), num_units=40, batch_size=8, steps=5) as private:
        private.check(losses_of, rows[:8])
        for _ in private.batches(rows):
            private.step(losses_of, optimizer)


def walks(folder: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """Return each walk: what is run, and what must have run before."""
    trained = command("train", "notes", *_SMALL, "--out", f"{folder}/plain")
    return {
        "train": (command("train", "notes", *_SMALL, *_SGD, "--out", f"{folder}/private"), None),
        "attack": (command("attack", f"{folder}/plain", "--attack", "lira", "--references", "4"), trained),
        "federate": (
            command("federate", "notes", *_SMALL, *_SGD, "--clients", "2", "--in-process", "--out", f"{folder}/joint"),
            None,
        ),
        "make_private": (own_loop, None),
    }


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DISCREET_HOME", f"{folder}/home")
        os.environ.setdefault("DISCREET_CACHE", f"{folder}/cache")
        known = walks(folder)
        if (chosen and chosen[0] not in known) or len(chosen) > 1:
            files = walk(command(*chosen, "--out", f"{folder}/run"))
            print(*files, f"{len(files)} files", sep="\n")
            return
        for name in chosen or known:
            run, before = known[name]
            if before is not None:
                before()
            files = walk(run)
            print(*(files if chosen else ()), f"{name}: {len(files)} files", sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
