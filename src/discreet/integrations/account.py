"""What a private training in somebody else's loop keeps: its ledger, its secret, its caveats, and how it is resumed.

The ledger, and what is counted in it, is on rank 0 alone; the secret is the same on all ranks.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from discreet.accounting.ledger import Ledger
from discreet.core.errors import BudgetError, LedgerError, ModelError, UnsupportedError, invalid, setting
from discreet.core.files import write_atomic
from discreet.core.guarantee import CHOICE, Caveat
from discreet.core.randomness import Rng, digest
from discreet.integrations.rows import Dataset, people_of
from discreet.runs.people import Entry, Marks, detach, place_of
from discreet.training.account import SUMS, Account, attach, ledger_for, public_facts
from discreet.training.changes import persistent_buffers
from discreet.training.engine import Processes
from discreet.training.plan import PrivatePlan

_FORMAT = 1  # of a state
_KEY_BYTES = 32  # of a secret
_NAME_BYTES = 8  # of the random name that a training's spends have in the ledger

_ASSUMPTIONS = (
    "each row of the dataset depends on the data of its own unit alone",
    "model, loss and collate function treat private rows as they treat the made-up rows of PrivateTraining.check: "
    "each row by itself, in tensors whose shapes do not depend on the other rows of a part",
    "losses, and whatever else the loop computes from private rows, are not released",
    CHOICE,
    *SUMS,
)
_RESUMED = (
    "a stopped training was resumed with the data, the code and the settings it was started with; that its weights, "
    "and the optimizer's state where it was known, were those of the checkpoint was checked"
)
_PROCESSES = "the processes of the training, and the network between them, are trusted"


class LoopAccount:
    """The account and the secret of a training in a user's loop, over all times that it is resumed.

    `identity` is a hash of everything that decides the noise besides the secret.

    Guarantee: `account.guarantee()`: that of every step that was counted, with the assumptions and caveats of each.
    """

    def __init__(
        self,
        plan: PrivatePlan,
        processes: Processes,
        ledger: Ledger | str | os.PathLike[str] | None,
        secret: Rng | str | os.PathLike[str] | None,
        identity: str,
    ) -> None:
        """Open the ledger and the secret; `make_private` says what they are."""
        self.plan, self.identity = plan, identity
        self.caveats: set[Caveat] = set()
        self.resumed = False
        self.repeats = False  # whether steps may be taken again with the secret of a checkpoint
        self.ended = False  # whether no step is left that the budget allows
        self._weights: str | None = None  # those of a checkpoint, keyed, until the first step after it
        self._optimizer: str | None = None
        self._processes = processes
        self._secret_path: Path | None = None
        self._is_kept = secret is not None  # whether another process may have this secret
        self._secret = self._open_secret(secret)
        self._owns_ledger = not isinstance(ledger, Ledger)
        self._account: Account | None = None  # on rank 0
        self._reserved, self._end = "", 0  # the name under which planned steps are counted, and the first that is not
        self._people: Marks = np.zeros(0, dtype=np.uint64)  # whose rows are trained on; nobody is known yet
        self._entry: Entry | None = None  # in the record of these people
        self._ledger_name = processes.from_first(lambda: self._open_ledger(ledger))
        self.runs = [(self._new_name(), 0)]  # names of spends, and the step from which each is used
        self._stated: set[Caveat] = set()  # those in the ledger

    @property
    def account(self) -> Account:
        """The account of the training, as it is now; on rank 0 only."""
        if self._account is None:
            raise UnsupportedError(
                f"Expected rank 0, got rank {self._processes.rank}. The ledger and the guarantee are kept there."
            )
        self._account.run, self._account.caveats = self.runs[-1][0], self.caveats
        self._account.assumptions = self._assumptions()
        return self._account

    @property
    def source(self) -> Rng:
        """Where batches and noise come from; another training with the same secret draws other ones."""
        return self._secret.fork("training", self.runs[-1][0]) if self._secret.is_secret else self._secret

    def know(self, dataset: Dataset, groups: Sequence[Any] | str | None) -> None:
        """Count what the training spends in the record of the people of a dataset, which `discreet ledger` adds up."""

        def add() -> None:
            people = people_of(dataset, groups, self.plan.unit)
            self._people = np.union1d(self._people, people)
            also = self.account.ledger.also
            if isinstance(also, Entry):
                also.include(people)

        self._processes.from_first(add)

    def spend(self, step: int) -> None:
        """Count a step, before anything of it is drawn or computed; with the first one, all planned steps.

        The ledger is asked at every step, also for one that it holds: it rejects a fork of the process, whose noise
        would be the same. `Ledger.spend` would take some percent of a short step, so it is for other steps alone.
        """

        def count() -> None:
            account = self.account
            if account.ledger.also is None:
                self._entry = attach(
                    self.plan,
                    self._people,
                    account.ledger,
                    out=place_of(account.ledger),
                    secret=self._secret.is_secret,
                    command="make_private",
                )
            if self._reserved != account.run:
                self._reserved = account.run
                self._end = step + account.reserve(map(self.plan.step_cost, range(step, self.plan.steps)))
                if step < self._end:
                    account.state()  # steps that were counted before a resume have its terms too
            if step < self._end:
                account.ledger.check_usable()
            else:
                account.spend(self.plan.step_cost(step))

        self._processes.from_first(count)

    def _assumptions(self) -> tuple[str, ...]:
        """Return what the guarantee of every step rests on, as it is written into the ledger."""
        public = public_facts(self.plan, "the settings and the model's first weights")
        resumed = (_RESUMED,) if self.resumed else ()
        trusted = (_PROCESSES,) if self._processes.size > 1 else ()
        return (public, *_ASSUMPTIONS, *resumed, *trusted)

    def state_caveats(self) -> None:
        """Write into the ledger what turned out on any rank, before the step that it concerns is released.

        The ledger is asked in any case: a fork of the process would release other sums with the same noise.
        """
        flags = self._processes.any_of([caveat in self.caveats for caveat in Caveat])
        self.caveats = {caveat for caveat, is_set in zip(Caveat, flags, strict=True) if is_set}
        if self.caveats != self._stated:
            self._processes.from_first(lambda: self.account.state())
            self._stated = set(self.caveats)
        elif self._account is not None:
            self._account.ledger.check_usable()

    def state(
        self, position: int, max_rows: int | None, model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Any]:
        """Return what a resumed training needs besides the weights and the optimizer: plain values, no secret.

        Of the weights and the optimizer it holds digests that only the secret can repeat, where it is kept.
        """
        return {
            "format": _FORMAT,
            "position": position,
            "runs": [list(run) for run in self.runs],
            "ledger": self._ledger_name,
            "plan": self.identity,
            "secret": digest(self._secret),
            "world_size": self._processes.size,
            "max_rows": max_rows,
            "weights": self._keyed(_saved(model)) if self._is_kept else None,
            "optimizer": self._keyed(optimizer.state_dict()) if self._is_kept and optimizer is not None else None,
        }

    def load(self, state: Mapping[str, Any]) -> int:
        """Resume after the steps of a state, and return their number.

        With the same secret, and the weights and optimizer of the state (`confirm_weights`, `confirm_optimizer`), steps
        that are taken again draw the same batches and the same noise and are counted once. Otherwise they are drawn
        anew, and counted again.
        """
        if state.get("format") != _FORMAT:
            remedy = "It was written by another version of discreet, or is not a state of a private training."
            raise invalid("state", state.get("format"), f"of format {_FORMAT}", remedy)
        size = self._processes.size
        if state["world_size"] != size:
            remedy = f"Resume with the {state['world_size']} processes the training was started with."
            raise invalid("world_size", size, f"{state['world_size']}, as in the checkpoint", remedy)
        if state["plan"] != self.identity:
            raise ModelError(
                "Expected the model, the protection, the units and the steps with which the training was started. "
                "Something changed since; call make_private with the same arguments."
            )
        self._processes.from_first(lambda: self._check_ledger_of(state))
        position = int(state["position"])
        self.runs = [(str(name), int(first)) for name, first in state["runs"]]
        if state["secret"] == digest(self._secret) and state.get("weights"):
            self.repeats, self._weights, self._optimizer = True, state["weights"], state["optimizer"]
        else:
            self.runs.append((self._new_name(), position))
        return position

    def explained(self, error: BudgetError) -> BudgetError:
        """Return the error of a first step, with the setting by which a resumed training counts no step twice."""
        if self.repeats or len(self.runs) == 1:
            return error
        return BudgetError(
            f"{error.message.marked} The training was resumed without the secret that it was started with, so "
            f"its steps are counted again. Set {setting('secret')} to that file, or start with one next time."
        )

    def confirm_weights(self, position: int, model: nn.Module) -> None:
        """Draw anew from this step on, before it is counted, unless the weights are those of the checkpoint.

        The same noise on the gradients of other weights would cancel in the difference of the two models.
        """
        expected, self._weights = self._weights, None
        if expected is None:
            return
        self.resumed = self._draw_anew_if(self._keyed(_saved(model)) != expected, position)

    def confirm_optimizer(self, position: int, optimizer: torch.optim.Optimizer) -> None:
        """Draw anew from this step on unless the optimizer, before it moves, is that of the checkpoint.

        The sum of the step before is released already, on the same weights; the weights after it would be other ones.
        """
        expected, self._optimizer = self._optimizer, None
        if expected is not None and self.resumed:
            self._draw_anew_if(self._keyed(optimizer.state_dict()) != expected, position)

    def _draw_anew_if(self, other: bool, position: int) -> bool:
        """Use a new name from this step on if something is another on any rank; return whether nothing is."""
        if self._processes.any_of([other])[0]:
            self._optimizer = None
            self.runs.append((self._new_name(), position))
            return False
        return True

    def _keyed(self, values: Any) -> str:
        return digest(self._secret.fork("checkpoint").words(4).tolist(), values)

    def close(self, position: int, begun: bool) -> None:
        """Close the ledger, once, if it was opened here, and delete the secret's file after the last step.

        A training that never began a step has read nothing.
        """
        try:
            if self._account is not None and begun and self.caveats - self._stated:
                self.account.state()
        finally:
            ended = position >= self.plan.steps or self.ended
            if self._entry is not None and self._account is not None:
                detach(self._entry, self._account.ledger, finished=ended)
                self._entry = None
            if self._owns_ledger and self._account is not None:
                self._account.ledger.close()
        if self._secret_path is not None and ended and self._processes.is_first:
            self._secret_path.unlink(missing_ok=True)

    def _open_secret(self, secret: Rng | str | os.PathLike[str] | None) -> Rng:
        if isinstance(secret, Rng):
            if secret.is_secure:
                remedy = "Leave it out for a fresh secret, or use Rng.secret()."
                raise invalid("secret", secret, "a source that can repeat a step", remedy)
            self._processes.check_equal("secret", digest(secret))
            return secret
        if secret is None:
            key = self._processes.from_first(lambda: os.urandom(_KEY_BYTES).hex())
        else:
            self._secret_path = Path(secret)
            key = self._processes.from_first(lambda: _key_in(Path(secret)))
        return Rng.secret(bytes.fromhex(key))

    def _open_ledger(self, ledger: Ledger | str | os.PathLike[str] | None) -> str:
        opened = ledger_for(self.plan, ledger)
        self._account = Account(self.plan, opened, self._secret)
        return opened.name

    def _check_ledger_of(self, state: Mapping[str, Any]) -> None:
        ledger = self.account.ledger
        if ledger.name != state["ledger"]:
            where = "one in memory" if ledger.path is None else repr(str(ledger.path))
            raise LedgerError(
                f"Expected the ledger that counted the {state['position']} steps of the checkpoint, got {where}. "
                f"Without it nothing is guaranteed: pass its path as {setting('ledger')}, or train from the beginning."
            )
        runs = [(str(name), int(first)) for name, first in state["runs"]]
        ends = [first for _, first in runs[1:]] + [int(state["position"])]
        for (name, first), end in zip(runs, ends, strict=True):
            for step in range(first, end):
                event, step_name = self.plan.step_cost(step)
                if not ledger.holds(f"{name} {step_name}"):
                    raise LedgerError(
                        f"Expected step {step} of the checkpoint in the ledger {str(ledger.path)!r}, which does not "
                        "hold it. It is an older copy; restore the ledger, or train from the beginning."
                    )
        if self.account.limit is not None:
            event, _ = self.plan.step_cost(0)
            for spent in ledger.names:
                if spent.partition(" ")[0] in dict(runs):
                    self.account.limit.spend(event, spent)

    def _new_name(self) -> str:
        return self._processes.from_first(lambda: secrets.token_hex(_NAME_BYTES))


def _saved(model: nn.Module) -> dict[str, Any]:
    """Return the tensors that a checkpoint of a model holds."""
    named = {**dict(model.named_parameters()), **dict(persistent_buffers(model))}
    return {name: tensor.detach() for name, tensor in named.items()}


def _key_in(path: Path) -> str:
    """Return the key in a private file, which is made if it is not there."""
    try:
        if not path.exists():
            write_atomic(path, os.urandom(_KEY_BYTES).hex(), replace=False)
        key = bytes.fromhex(path.read_text(encoding="ascii"))
        is_private = path.stat().st_mode & 0o077 == 0
    except (OSError, ValueError):
        key, is_private = b"", False
    if len(key) != _KEY_BYTES or not is_private:
        remedy = (
            "Name a file that does not exist yet, in a folder of yours, or leave it out for a secret that is not kept."
        )
        raise invalid("secret", str(path), "a key of 64 hexadecimal digits that only its owner can read", remedy)
    return key.hex()
