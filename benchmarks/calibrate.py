"""How long it takes to find the noise for a budget, beside Opacus's own solver.

python -m benchmarks.calibrate           a table
python -m benchmarks.calibrate --json    one JSON object

Each solver is run once to warm up and then in turn, so that all meet the same machine; times are medians. Opacus is
asked with its defaults (Renyi accountant, epsilon within 0.01) and with its tighter one; ours finds noise within 1e-4.
The question is the same: rate 0.01, 10,000 steps, delta 1e-5, epsilon 3. Less noise is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable

from discreet.accounting import losses, renyi
from discreet.accounting.calibrate import least_noise
from discreet.accounting.events import ClippedSumDpEvent, DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon

RATE, STEPS, DELTA, TARGET = 0.01, 10_000, 1e-5, 3.0


def training(noise: float) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(RATE, ClippedSumDpEvent(noise)), STEPS)


def ours(accountant: str) -> float:
    losses.use_curve.cache_clear()  # type: ignore[attr-defined]
    renyi._divergences.cache_clear()  # type: ignore[attr-defined]
    return least_noise(training, epsilon=TARGET, delta=DELTA, accountant=accountant)


def theirs(accountant: str) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(
            get_noise_multiplier(
                target_epsilon=TARGET, target_delta=DELTA, sample_rate=RATE, steps=STEPS, accountant=accountant
            )
        )


SOLVERS: dict[str, Callable[[], float]] = {
    "discreet pld": lambda: ours("pld"),
    "discreet rdp": lambda: ours("rdp"),
    "opacus rdp (default)": lambda: theirs("rdp"),
    "opacus prv": lambda: theirs("prv"),
}


def measure(repeats: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in SOLVERS}
    noises = {name: solver() for name, solver in SOLVERS.items()}
    for _ in range(repeats):
        for name, solver in SOLVERS.items():
            start = time.perf_counter()
            solver()
            times[name].append(time.perf_counter() - start)
    return {
        name: {
            "seconds": statistics.median(times[name]),
            "noise_multiplier": noises[name],
            "true_epsilon": epsilon(training(noises[name]), DELTA),
        }
        for name in SOLVERS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.repeats)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'solver':24}{'seconds':>10}{'noise':>10}{'epsilon':>10}")
    for name, row in found.items():
        print(f"{name:24}{row['seconds']:10.4f}{row['noise_multiplier']:10.4f}{row['true_epsilon']:10.4f}")


if __name__ == "__main__":
    main()
