"""How many files of the package one reads to follow a command: those with a function that runs before the first step.

python -m benchmarks.walk                                       discreet train notes --protect dp-sgd --epsilon 3
python -m benchmarks.walk train notes --protect texthide        another training

Files are counted by function frames (`sys.setprofile`), in the order in which they are entered; modules that are only
imported, and class bodies, do not count. The walk ends where the first training step is taken.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "discreet"
_STEPS = {"training/private.py", "training/hidden.py", "training/stored.py", "training/steps.py"}
_WALK = ["train", "notes", "--rows", "200", "--protect", "dp-sgd", "--epsilon", "3"]


class FirstStep(BaseException):
    """The first training step is about to be taken."""


def walk(arguments: list[str]) -> list[str]:
    """Return the files whose functions run from the entry of the command to its first step."""
    from discreet.cli.main import main

    entered: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in {"<module>", "<lambda>"} or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_qualname == code.co_name.strip("<>") and code.co_name.lstrip("_")[:1].isupper():
            return  # a class body
        name = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        entered.setdefault(name)
        if name in _STEPS and code.co_name == "__call__":
            raise FirstStep

    sys.setprofile(watch)
    try:
        main(arguments)
    except FirstStep:
        pass
    finally:
        sys.setprofile(None)
    return list(entered)


if __name__ == "__main__":
    given = sys.argv[1:] or _WALK
    with tempfile.TemporaryDirectory() as folder:
        files = walk([*given, "--out", f"{folder}/run"])
    print(*files, sep="\n")
    print(f"{len(files)} files")
