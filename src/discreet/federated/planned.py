"""A ledger that holds every planned step of a run before the first one is taken.

When a federated run stops may be decided by looking at its noisy models, by the server or by its owner. The cost of the
steps so far is proven only for a number of steps that was fixed in advance, so a run that is cut short costs as much as
its plan. A client cannot know whether the server will ask again. Therefore all planned steps are counted at the
beginning, and each step that is taken uses one of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from discreet.accounting.ledger import Ledger, Receipt, Terms
from discreet.core.files import sync_path, write_all
from discreet.core.guarantee import Caveat

ANSWERS = "answers.jsonl"


class PlannedLedger(Ledger):
    """A ledger whose spends are numbered places of a plan: all planned ones are written with the first step.

    Guarantee: the ledger never holds fewer spends than the plan or, if its budget is smaller, than that allows, and
        never fewer than there are different steps. `answers.jsonl` next to it names the step of each place that is in
        use, and is on disk before the noise is used; if it is lost, all places count as used.

    >>> import tempfile
    >>> from discreet.accounting.events import GaussianDpEvent
    >>> with PlannedLedger.open(None, unit="note", adjacency="zero-out") as ledger:
    ...     ledger.plan("run", 3, Path(tempfile.mkdtemp()))
    ...     for name in ("step 0", "step 0", "step 1"):
    ...         receipt = ledger.spend(GaussianDpEvent(2.0), name)
    ...     ledger.statement.spends, receipt.id
    (3, 'run 2')
    """

    name_of_plan = ""
    planned = 0
    trusted = False

    def plan(self, name: str, planned: int, folder: Path, *, trusted: bool = False) -> None:
        """Set the name of the plan, its number of spends, and the folder that says which of them are in use.

        `trusted` says that no step beyond the plan is taken because of what an earlier step released.
        """
        self.name_of_plan, self.planned, self.trusted = name, planned, trusted
        self._file = folder / ANSWERS
        self._reserved = False
        self._places: dict[str, int] = {}
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            self._append_text("\n")
        own = [one for one in map(_entry, lines) if one.get("plan") == name]
        if own:
            self._first = int(own[0]["first"])
            self._places = {str(one["id"]): self._first + n for n, one in enumerate(own[1:])}
            return
        self._first = 0
        while self.holds(self.place(self._first)):
            self._first += 1
        self._append({"plan": name, "first": self._first})

    def place(self, number: int) -> str:
        """Return the id of a place; the first is number 1."""
        return f"{self.name_of_plan} {number + 1}"

    def spend(
        self,
        event: Any,
        id: str,  # noqa: A002
        *,
        secure: bool = False,
        terms: Terms | None = None,
    ) -> Receipt:
        """Count a step: it takes the next place of the plan, or one more spend if the plan is used up.

        A step that has a place keeps it, unless `secure` says that its randomness is new. Without `trusted`, more steps
        than planned were the choice of someone who saw the results: then the whole budget is counted, and without a
        budget the figure is an estimate.

        Guarantee: that of `Ledger.spend`, for the whole plan.
        """
        number = None if secure else self._places.get(id)
        if number is not None:
            return super().spend(event, self.place(number), terms=terms)
        number = self._first + len(self._places)
        if number >= self.planned and not self.trusted and self.budget is None:
            terms = (terms or Terms()) | Terms(caveats=frozenset({Caveat.UNPLANNED_STEPS}))
        receipt = super().spend(event, self.place(number), terms=terms)
        self.reserve(event, terms)
        if number >= self.planned and not self.trusted and self.budget is not None:
            further = range(number + 1, number + 1 + self.remaining(event))
            self.spend_all([(event, self.place(more)) for more in further], terms=terms)
        key = f"{id} {number}" if secure else id
        self._append({"plan": self.name_of_plan, "id": key})
        self._places[key] = number
        return receipt

    def reserve(self, event: Any, terms: Terms | None = None) -> None:
        """Count all planned steps, or as many as the budget allows: the plan could not take more."""
        if not self._reserved:
            self.spend_all([(event, self.place(number)) for number in range(self.planned)], terms=terms)
            self._reserved = True

    def _append(self, entry: dict[str, Any]) -> None:
        self._append_text(json.dumps(entry) + "\n")

    def _append_text(self, text: str) -> None:
        new = not self._file.exists()
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(handle, text.encode())
        finally:
            os.close(handle)
        sync_path(self._file)
        if new:
            sync_path(self._file.parent)


def _entry(line: bytes) -> dict[str, Any]:
    """Return a line; a torn one was not on disk when the noise would have been used, so its place is free."""
    try:
        return dict(json.loads(line)) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
