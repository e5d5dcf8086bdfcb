"""What a secure sum costs and hides, and what noise of the clients costs beside central noise.

python -m benchmarks.secure_sum protocol                       8 clients, 2 drop out at every stage; times by length
python -m benchmarks.secure_sum round --rows 800 --train all   a FedAvg round of one local epoch: secure sum over mean
python -m benchmarks.secure_sum noise --runs 1000              certified epsilon beside central noise, and an audit

Everything runs in one process, one client after the other, so that a time is that of all parties together; with
`--processes`, `round` runs Flower's processes and adds up their processor time. `round` gives seconds of processor time
beside those of the clock: other work on the machine changes the latter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from discreet import Rng
from discreet.accounting.events import GaussianDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon
from discreet.core.guarantee import Adjacency
from discreet.federated.secure_sum.messages import Stage, SumSettings
from discreet.federated.secure_sum.noise import MECHANISMS, DistributedNoise
from discreet.federated.secure_sum.protocol import run_sum
from discreet.federated.secure_sum.ring import FixedPoint, Ring
from discreet.metrics.intervals import clopper_pearson

CLIENTS, THRESHOLD = 8, 6
STAGES = (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONFIRM, Stage.REVEAL)


def protocol(lengths: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    fixed = FixedPoint(Ring(32), 24, terms=CLIENTS)
    for length in lengths:
        numbers = np.random.default_rng(0).normal(size=(CLIENTS, length))
        began = time.process_time()
        vectors = {client: fixed.encode(numbers[client]) for client in range(CLIENTS)}
        encoding = time.process_time() - began
        for stage in (None, *STAGES):
            gone = () if stage is None else (2, 5)
            settings = SumSettings(os.urandom(16), 1, THRESHOLD, length, fixed.ring)
            began = time.process_time()
            server = run_sum(settings, vectors, dropped={} if stage is None else {stage: gone}, keep_record=True)
            seconds = time.process_time() - began
            kept = sorted(server.survivors)
            error = np.abs(fixed.decode(server.result()) - numbers[kept].sum(0)).max()
            exact = np.rint(numbers[kept] * 2.0**24).sum(0) / 2.0**24
            rows.append(
                {
                    "numbers": length,
                    "dropped_at": "nothing" if stage is None else stage.name.lower(),
                    "survivors": len(kept),
                    "exact_to_the_step": bool((fixed.decode(server.result()) == exact).all()),
                    "largest_error_in_steps": round(float(error) / fixed.step, 2),
                    "largest_chi_square_z": round(max(_uniformity(server.record)), 2),
                    "cpu_seconds_all_parties": round(seconds, 3),
                    "cpu_seconds_encoding": round(encoding, 3),
                    "megabytes_to_server": round(sum(len(m.to_bytes()) for m in server.record) / 1e6, 3),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _uniformity(record: list[Any]) -> list[float]:
    """How far the bytes of each masked vector, and of differences of two, are from uniform, in standard deviations."""
    masked = [np.frombuffer(m.body, dtype="<u4") for m in record if m.stage is Stage.MASKED]
    found = []
    for words in [*masked, *(a - b for a, b in itertools.combinations(masked, 2))]:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        found.append(abs(float(((counts - expected) ** 2 / expected).sum()) - 255) / math.sqrt(510))
    return found


def one_round(options: argparse.Namespace) -> list[dict[str, Any]]:
    from discreet.data.sources import TextSource
    from discreet.federated.aggregation import Aggregation, Mean
    from discreet.federated.run import FederateOptions, run_in_process, settled
    from discreet.federated.secure_sum.aggregations import SecureSum
    from discreet.federated.settings import Federation
    from discreet.models.settings import ModelSettings, TrainSettings

    aggregations: dict[str, Aggregation] = {"mean": Mean(), "secure-sum": SecureSum()}
    if options.noise:
        aggregations["secure-sum with noise"] = SecureSum(noise_multiplier=1.0)
    batch = 8 * options.clients
    steps = max(1, options.rows // batch)
    rows: list[dict[str, Any]] = []
    for name, aggregation in aggregations.items():
        settings = Federation(
            data=TextSource(options.data, rows=options.rows),
            model=ModelSettings(encoder="minilm", train=options.train),
            training=TrainSettings(epochs=options.rounds, batch_size=batch, learning_rate=1e-5),
            clients=options.clients,
            exchange="weights",
            local_steps=steps,
            aggregation=aggregation,
        )
        settings, _ = settled(settings)
        clocks: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            if options.processes:
                clocks = _clocks_of_processes(settings, Path(folder))
            else:
                watched = FederateOptions(watch=lambda report: clocks.append(_clock()))  # noqa: B023
                run_in_process(settings, Path(folder), watched)
        spent = np.diff(np.array(clocks), axis=0)  # the first round also reads text and builds models
        wall, cpu = np.median(spent, axis=0).tolist()
        rows.append(
            {
                "train": options.train,
                "rows": options.rows,
                "clients": options.clients,
                "processes": options.processes,
                "aggregation": name,
                "rounds_timed": len(spent),
                "seconds": round(wall, 2),
                "cpu_seconds": round(cpu, 2),
                "ratio_cpu": round(cpu / rows[0]["cpu_seconds"], 3) if rows else 1.0,
                "ratio_clock": round(wall / rows[0]["seconds"], 3) if rows else 1.0,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _clock() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _clocks_of_processes(settings: Any, folder: Path) -> list[tuple[float, float]]:
    """Run Flower's processes, and return the time and their processor time after each round."""
    from discreet.federated.processes import running

    clocks: list[tuple[float, float]] = []
    progress, result = folder / "server" / "progress.jsonl", folder / "server" / "result.json"
    with running(settings, folder) as cluster:
        while not result.exists():
            rounds = len(progress.read_text(encoding="utf-8").splitlines()) if progress.exists() else 0
            if rounds > len(clocks):
                clocks.append((time.monotonic(), _processor_seconds()))
            cluster.supervise()
            time.sleep(0.02)
    return clocks


def _processor_seconds() -> float:
    """Return the processor time that all descendants of this process have used (Linux)."""
    seconds, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it ended in the meantime
        number = int(path.parent.name)
        parents[number], seconds[number] = int(values[1]), int(values[11]) + int(values[12])
    mine = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(seconds[number] for number in mine - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def noise(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    central = epsilon(GaussianDpEvent(options.multiplier), options.delta, Adjacency.ZERO_OUT)
    for mechanism in MECHANISMS:
        for dimension in (2, 770, 1_000_000):
            own = DistributedNoise(options.multiplier, 1.0, dimension, CLIENTS, THRESHOLD, mechanism)
            many = SelfComposedDpEvent(GaussianDpEvent(options.multiplier), 50)
            row = {
                "mechanism": mechanism,
                "numbers": dimension,
                "noise_multiplier": options.multiplier,
                "steps_in_a_deviation": round(own.sigma),
                "certified_epsilon": round(own.epsilon(options.delta), 4),
                "central_epsilon": round(central, 4),
                "certified_epsilon_50_rounds": round(own.epsilon(options.delta, 50), 4),
                "central_epsilon_50_rounds": round(epsilon(many, options.delta, Adjacency.ZERO_OUT), 4),
            }
            if dimension == 2:
                row |= audit(own, options.runs, options.delta)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def audit(own: DistributedNoise, runs: int, delta: float) -> dict[str, Any]:
    """Run the protocol many times with and without one client's vector, and bound epsilon from below.

    Half of the runs choose the threshold and the direction of the test, the other half bound its error rates: with
    97.5% confidence each, so that the bound holds with 95%.
    """
    sums = {present: _sums(own, present, runs) for present in (False, True)}
    half = runs // 2
    candidates = np.quantile(np.concatenate([sums[True][:half], sums[False][:half]]), np.linspace(0.02, 0.98, 97))
    tests = [(float(at), upward) for at in candidates for upward in (True, False)]
    best = max(tests, key=lambda test: _lower(sums, slice(0, half), *test, delta))
    return {
        "audit_runs": 2 * runs,
        "audited_epsilon": round(max(0.0, _lower(sums, slice(half, None), *best, delta)), 3),
    }


def _sums(own: DistributedNoise, present: bool, runs: int) -> np.ndarray:
    sums = np.empty(runs)
    for run in range(runs):
        vectors = {client: own.encode([float(present and client == 0), 0.0], Rng.secure()) for client in range(CLIENTS)}
        settings = SumSettings(os.urandom(16), run, THRESHOLD, 2, own.ring)
        sums[run] = own.decode(run_sum(settings, vectors, dropped={Stage.MASKED: [3, 6]}).result())[0]
    return sums


def _lower(sums: dict[bool, np.ndarray], part: slice, threshold: float, upward: bool, delta: float) -> float:
    """Return the epsilon that a test refutes: its power over its rate of false alarms, as far as they are sure."""
    over, under = (sums[present][part] > threshold for present in (True, False))
    more, less = (over, under) if upward else (~under, ~over)
    least = clopper_pearson(int(more.sum()), len(more), 0.95)[0]
    most = clopper_pearson(int(less.sum()), len(less), 0.95)[1]
    return math.log(max(least - delta, 1e-12) / most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["protocol", "round", "noise"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--data", default="notes", help="text source of `round`")
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", default="all", choices=["all", "head", "lora"])
    parser.add_argument("--noise", action="store_true", help="also time a round with noise")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="clients of `round`")
    parser.add_argument("--processes", action="store_true", help="time `round` over Flower's processes")
    parser.add_argument("--runs", type=int, default=1000, help="runs of the audit on each side")
    parser.add_argument("--multiplier", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.part == "protocol":
        rows = protocol(options.lengths)
    else:
        rows = one_round(options) if options.part == "round" else noise(options)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
