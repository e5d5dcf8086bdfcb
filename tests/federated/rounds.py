"""A round in one process, without Flower: every client answers at once, unless it drops out."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.randomness import Rng
from discreet.federated.aggregation import Aggregation, Local, Payload, Round, Total, Update


def run_round(
    aggregation: Aggregation,
    updates: Mapping[int, Update],
    drop: Mapping[str, Collection[int]] | None = None,
    log: list[str] | None = None,
    seen: list[tuple[str, int, Payload]] | None = None,
    number: int = 1,
    spent: list[Any] | None = None,
) -> Total:
    """Return the total of one round; `drop` names the clients that do not answer at a stage, nor afterwards.

    Every answer that the server receives is appended to `seen`, and what clients spend for themselves to `spent`.
    """
    memory: dict[int, dict[str, bytes]] = defaultdict(dict)
    gone: set[int] = set()

    def ask(stage: str, requests: Mapping[int, Payload]) -> dict[int, Payload]:
        gone.update((drop or {}).get(stage, ()))
        answers = {}
        for client, request in requests.items():
            if client in gone:
                continue
            local = Local(
                number,
                client,
                lambda client=client: updates[client],
                memory[client],
                Rng.secret(),  # type: ignore[misc]
                (spent if spent is not None else []).append,
            )
            answers[client] = aggregation.respond(stage, request, local)
            if seen is not None:
                seen.append((stage, client, answers[client]))
        return answers

    some = next(iter(updates.values()))
    about = Round(
        number,
        tuple(sorted(updates)),
        {client: update.weight for client, update in updates.items()},
        {name: np.zeros_like(value) for name, value in some.arrays.items()},
        ask,
        (log if log is not None else []).append,
    )
    return aggregation.collect(about, Rng.secret())


def random_updates(clients: int, seed: int = 0, size: int = 7) -> dict[int, Update]:
    """Return updates of two arrays with different weights."""
    rng = np.random.default_rng(seed)

    def array(*shape: int) -> npt.NDArray[np.float32]:
        return rng.normal(size=shape).astype(np.float32)

    return {c: Update({"a": array(size), "b": array(2, size)}, float(10 + c)) for c in range(clients)}
