"""A round of Flower's SecAgg+ beside a round of `secure_sum`: time, bytes, dropouts, and what a server can do.

    python -m benchmarks.secure_sum_flower

Both run in one process, one client after the other. The masks of SecAgg+ come from NumPy's `RandomState`, whose seed
has 32 bits, and 28 if it is made from a key in base64: `--search` counts how many seeds a second one core tries. The
table is in docs/decisions/secure_sum.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from discreet.federated.secure_sum.messages import Stage, SumSettings
from discreet.federated.secure_sum.protocol import run_sum
from discreet.federated.secure_sum.ring import FixedPoint, Ring

CLIENTS, THRESHOLD = 8, 6
THEIRS = ("setup", "share_keys", "collect_masked_vectors", "unmask")
OURS = dict(zip(THEIRS, (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.REVEAL), strict=True))


class Wire:
    """Flower's grid in one process: it hands messages to clients, some of whom drop out, and counts bytes."""

    def __init__(self, vectors: Mapping[int, Any], dropped: Mapping[str, Collection[int]], cheat: bool = False) -> None:
        from flwr.app import Context, RecordDict

        self.vectors, self.dropped, self.cheat = vectors, dropped, cheat
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in vectors}
        self.gone: set[int] = set()
        self.to_server = 0
        self.shares_from_one = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
        from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

        replies = []
        for message in messages:
            configs = message.content.config_records[RECORD_KEY_CONFIGS]
            self.gone |= set(self.dropped.get(str(configs["stage"]), ()))
            node = message.metadata.dst_node_id
            if node in self.gone:
                continue
            if self.cheat and configs["stage"] == "unmask":  # ask for both shares of everybody
                configs["dead_nids"] = list(configs["active_nids"])
            reply, size = _received(secaggplus_mod(_received(message)[0], self.contexts[node], self._train))
            self.to_server += size
            shares: Any = reply.content.config_records[RECORD_KEY_CONFIGS].get("shares", [])
            self.shares_from_one = max(self.shares_from_one, len(shares))
            replies.append(reply)
        return replies

    def _train(self, message: Any, context: Any) -> Any:
        from flwr.app import Message
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
        from flwr.compat.common import recorddict_compat as compat

        parameters = ndarrays_to_parameters([self.vectors[message.metadata.dst_node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, 1, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)


def _received(message: Any) -> tuple[Any, int]:
    """Return a message as it arrives on the other side, and its size in bytes."""
    from flwr.common.serde import message_from_proto, message_to_proto

    sent = message_to_proto(message)
    return message_from_proto(sent), sent.ByteSize()


class Strategy:
    """Sends nothing to all clients, and keeps what the server made of their replies."""

    def __init__(self, nodes: Collection[int]) -> None:
        self.nodes, self.result = nodes, None

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        from flwr.common import FitIns, Parameters

        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], "numpy.ndarray"), {})) for node in self.nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        from flwr.common import parameters_to_ndarrays

        self.result = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


def flower(vectors: Mapping[int, Any], dropped: Mapping[str, Collection[int]], cheat: bool = False) -> dict[str, Any]:
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.secure_aggregation import SecAggPlusWorkflow
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # of this process, which messages name
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({"current_round": 1}), MAIN_PARAMS_RECORD: ArrayRecord()})
    strategy, wire = Strategy(vectors), Wire(vectors, dropped, cheat)
    manager: Any = SimpleNamespace(num_available=lambda: len(vectors))
    context = LegacyContext(Context(1, 0, {}, state, {}), strategy=strategy, client_manager=manager)  # type: ignore[arg-type]
    workflow = SecAggPlusWorkflow(CLIENTS, THRESHOLD, max_weight=1.0)
    began = time.process_time()
    try:
        workflow(wire, context)  # type: ignore[arg-type]
        said = "" if strategy.result is not None else "no result"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - began
    kept = [node for node in vectors if node not in wire.gone or node in dropped.get("unmask", ())]
    error = None
    if strategy.result is not None:
        error = float(np.abs(strategy.result - np.mean([vectors[node] for node in kept], axis=0)).max())
    return {"cpu_seconds": round(seconds, 3), "megabytes_to_server": round(wire.to_server / 1e6, 3),
            "largest_error_of_mean": error, "failed": said,
            "shares_from_one_client": wire.shares_from_one}  # fmt: skip


def ours(vectors: Mapping[int, Any], dropped: Mapping[str, Collection[int]]) -> dict[str, Any]:
    fixed = FixedPoint(Ring(32), 24, terms=CLIENTS)
    length = len(next(iter(vectors.values())))
    settings = SumSettings(os.urandom(16), 1, THRESHOLD, length, fixed.ring)
    began = time.process_time()
    words = {node: fixed.encode(vector) for node, vector in vectors.items()}
    stages = {OURS[stage]: nodes for stage, nodes in dropped.items()}
    server = run_sum(settings, words, dropped=stages, keep_record=True)
    mean = fixed.decode(server.result()) / len(server.survivors)
    seconds = time.process_time() - began
    error = float(np.abs(mean - np.mean([vectors[node] for node in server.survivors], axis=0)).max())
    sent = sum(len(message.to_bytes()) for message in server.record) / 1e6
    return {"cpu_seconds": round(seconds, 3), "megabytes_to_server": round(sent, 3), "largest_error_of_mean": error}


def search(seconds: float) -> float:
    """Return how many seeds of a mask one core compares in a second with what a masked vector must look like."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    tried, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        for _ in range(1000):
            pseudo_rand_gen(tried.to_bytes(4, "little"), 2**32, [(2,)])
            tried += 1
    return tried / (time.process_time() - began)


def seed_bits(count: int = 2000) -> int:
    """Return how many bits the seeds of pairwise masks use, by the seeds of many random keys."""
    used = 0
    for _ in range(count):
        key, seed = base64.urlsafe_b64encode(os.urandom(32)), 0  # the form of flwr's `generate_shared_key`
        for place in range(0, len(key), 4):  # as in `pseudo_rand_gen`
            seed ^= int.from_bytes(key[place : place + 4], "little")
        used |= seed
    return used.bit_count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1000, 1_000_000])
    parser.add_argument("--search", type=float, default=2.0, help="seconds")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for length in options.lengths:
        source = np.random.default_rng(0)
        vectors = {node: source.uniform(-1, 1, length) for node in range(1, CLIENTS + 1)}
        for stage in (None, *THEIRS):
            dropped = {} if stage is None else {stage: (2, 5)}
            for name, run in (("ours", ours), ("flower", flower)):
                print(json.dumps({"numbers": length, "dropped_at": stage, "by": name, **run(vectors, dropped)}))
    print(json.dumps({"a server that asks for both shares of all": flower(vectors, {}, cheat=True)}))
    each_second = search(options.search)
    hours = {f"hours_for_2^{bits}": round(2**bits / each_second / 3600, 1) for bits in (28, 32)}
    print(json.dumps({"bits_of_pairwise_seeds": seed_bits(), "seeds_per_second": round(each_second), **hours}))


if __name__ == "__main__":
    main()
