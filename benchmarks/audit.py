"""Audits beside the truth: how tight each is, how often it is above, and that every broken variant is caught.

python -m benchmarks.audit gaussian             the Gaussian mechanism at epsilon 1, 4 and 8, 200 runs each
python -m benchmarks.audit truth --runs 300     the same at mu 1 and 3, with many runs: how often a bound is above
python -m benchmarks.audit checks --runs 20     correct tiny training runs with secret noise: p-values of all checks
python -m benchmarks.audit opake                the same scores in opake 0.16 (Python 3.13: opake, opake-auditing)
python -m benchmarks.audit protections          every mechanism and protection: claim, many runs, one run
python -m benchmarks.audit variants             every broken variant of the tests
python -m benchmarks.audit words                word-level sanitizers at equal nominal epsilon, MiniLM's vocabulary
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.accounting.gdp import gaussian_epsilon, gaussian_mu
from discreet.audit.many_runs import audit_many_runs
from discreet.audit.mechanisms import MECHANISMS, mechanism_subject
from discreet.audit.one_run import Guesses, fdp_epsilon, guess, planned_guesses, steinke_epsilon
from discreet.audit.order_statistics import order_epsilon
from discreet.audit.protections import protection_subject, words_subject
from discreet.audit.subject import Audited, Subject
from discreet.audit.subject import audit as audit_subject
from discreet.audit.sums import sums_epsilon
from discreet.audit.trade_off import gaussian
from discreet.core.randomness import Rng

DELTA = 1e-5
EPSILONS = (1.0, 4.0, 8.0)


def coins_and_scores(mu: float, count: int, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return the coins of canaries and their scores under Gaussian noise."""
    bits = rng.fork("coins").uniform(count) < 0.5
    return bits, rng.fork("noise").numpy().standard_normal(count) + mu * bits


def gaussian_rows(runs: int, canaries: int) -> list[dict[str, Any]]:
    """Return the figures of every one-run audit on the same canaries of the Gaussian mechanism."""
    rows, family = [], gaussian()
    for epsilon in EPSILONS:
        mu = gaussian_mu(epsilon, DELTA)
        side = planned_guesses(canaries, family.trade_off(mu))
        found: dict[str, list[float]] = {"steinke": [], "f-DP": [], "order statistics": [], "sums (estimate)": []}
        for run in range(runs):
            bits, scores = coins_and_scores(mu, canaries, Rng(run).fork("gaussian", str(epsilon)))
            outcome = guess(scores, bits, side, side)
            found["steinke"].append(steinke_epsilon(outcome, DELTA))
            found["f-DP"].append(fdp_epsilon(outcome, family, DELTA))
            top = np.argsort(-np.abs(scores - mu / 2))[: 2 * side]
            right = int(((scores > mu / 2) == bits)[top].sum())
            found["order statistics"].append(order_epsilon(Guesses(canaries, 2 * side, right), DELTA))
            if run < 20:
                found["sums (estimate)"].append(sums_epsilon(scores, bits, DELTA))
        for method, values in found.items():
            rows.append(
                {
                    "epsilon": epsilon,
                    "canaries": canaries,
                    "guesses": 2 * side,
                    "method": method,
                    "runs": len(values),
                    "mean": float(np.mean(values)),
                    "least": float(np.min(values)),
                    "above": int(sum(value > epsilon for value in values)),
                }
            )
    return rows


def truth_rows(runs: int, canaries: int) -> list[dict[str, Any]]:
    """Return how often each lower bound is above the epsilon of an exact Gaussian mechanism, at mu 1 and 3."""
    rows, family = [], gaussian()
    for mu in (1.0, 3.0):
        truth = gaussian_epsilon(mu, DELTA)
        side = planned_guesses(canaries, family.trade_off(mu))
        found: dict[str, list[float]] = {"many runs": [], "steinke": [], "f-DP": [], "order statistics": []}

        def draw(present: bool, count: int, rng: Rng, mu: float = mu) -> np.ndarray:
            return rng.numpy().standard_normal(count) + mu * present

        for _ in range(runs):
            rng = Rng.secret()
            bits, scores = coins_and_scores(mu, canaries, rng)
            outcome = guess(scores, bits, side, side)
            found["many runs"].append(audit_many_runs(draw, delta=DELTA, rng=rng.fork("many"), draws=20_000).epsilon)
            found["steinke"].append(steinke_epsilon(outcome, DELTA))
            found["f-DP"].append(fdp_epsilon(outcome, family, DELTA))
            found["order statistics"].append(order_epsilon(outcome, DELTA))
        for method, values in found.items():
            above = int(sum(value > truth for value in values))
            row = {"mu": mu, "epsilon": truth, "method": method, "runs": runs, "mean": float(np.mean(values))}
            rows.append({**row, "above": above})
    return rows


def check_rows(runs: int) -> list[dict[str, Any]]:
    """Return the p-values of the checks of correct training runs, with every sampler and correlation of dp-sgd."""
    import tempfile

    from tests.audit.test_canaries import toy
    from tests.conftest import save_encoder

    from discreet.audit.run import audit_run
    from discreet.data.sources import TextSource
    from discreet.experiment.run import RunRequest, train_once
    from discreet.models.classifier import ModelSettings
    from discreet.models.settings import TrainSettings
    from discreet.protections.dp_sgd import DPSGD

    methods: dict[str, dict[str, Any]] = {
        "poisson": {},
        "truncated": {"sampler": "truncated-poisson"},
        "allocation": {"sampler": "random-allocation"},
        "banded": {"correlation": "banded", "bands": 3},
        "lambda-cgd": {"correlation": "lambda-cgd"},
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = save_encoder(Path(folder) / "encoder", "bert")
        model = ModelSettings(encoder=str(encoder), train="head", dropout=0.1)
        settings = TrainSettings(epochs=4, batch_size=8, learning_rate=1e-2)
        for method, values in methods.items():
            found: dict[str, list[float]] = {}
            refuted = 0
            for run in range(runs):
                protect = DPSGD(epsilon=3.0, delta=1e-3, **values)
                out = Path(folder) / f"{method}-{run}"
                train_once(RunRequest(TextSource("toy.csv"), model, settings, protect, audit=100), out, corpus=toy(48))
                result = audit_run(out)
                refuted += result.refuted
                for check in result.checks:
                    found.setdefault(check.aspect.value, []).append(check.p_value)
            for aspect, p_values in found.items():
                row = {"method": method, "runs": runs, "refuted": refuted, "check": aspect}
                rows.append({**row, "least": float(min(p_values)), "median": float(np.median(p_values))})
    return rows


def opake_rows(runs: int, canaries: int) -> list[dict[str, Any]]:
    """Return opake's two audits on the scores of `gaussian_rows`, and ours with its number of guesses, all of them."""
    from opake.api.auditing.one_run._estimate import OneRunEstimate  # type: ignore[import-not-found]
    from opake.api.auditing.one_run._roc import get_tn_fn_counts  # type: ignore[import-not-found]

    rows = []
    for epsilon in EPSILONS:
        mu = gaussian_mu(epsilon, DELTA)
        found: dict[str, list[float]] = {"opake, gdp": [], "opake, (eps, delta)": [], "ours, all guessed": []}
        for run in range(runs):
            bits, scores = coins_and_scores(mu, canaries, Rng(run).fork("gaussian", str(epsilon)))
            inside, outside = scores[bits], scores[~bits]
            cuts, tn, fn = get_tn_fn_counts(inside, outside)
            ends = (fn[-1] - fn)[::-1], (tn[-1] - tn)[::-1]
            estimate = OneRunEstimate(len(inside), len(outside), cuts, tn, fn, *ends, inside, outside)
            found["opake, gdp"].append(estimate.gdp().epsilon_at(delta=DELTA))
            found["opake, (eps, delta)"].append(estimate.eps_delta().epsilon_at(delta=DELTA))
            right = int(((scores > mu / 2) == bits).sum())
            found["ours, all guessed"].append(order_epsilon(Guesses(canaries, canaries, right), DELTA))
        for method, values in found.items():
            above = int(sum(value > epsilon for value in values))
            rows.append(
                {
                    "epsilon": epsilon,
                    "canaries": canaries,
                    "method": method,
                    "runs": runs,
                    "mean": float(np.mean(values)),
                    "above": above,
                }
            )
    return rows


def row_of(result: Audited) -> dict[str, Any]:
    """Return one line of a table."""
    one = result.one_run
    return {
        "name": result.name,
        "claim": result.upper_bound,
        "many runs": result.lower_bound,
        "refuted": result.refuted,
        "one run, f-DP": one.fdp,
        "one run, steinke": one.steinke,
        "one run refutes": one.refuted,
    }


def audited(subject: Subject, name: str) -> dict[str, Any]:
    """Return the audit of a subject under a name, with 200,000 draws of each neighbour."""
    began = time.monotonic()
    row = row_of(audit_subject(subject, delta=DELTA, rng=Rng(11)))
    return {**row, "name": name, "seconds": round(time.monotonic() - began, 2)}


def protection_rows() -> list[dict[str, Any]]:
    """Return the audit of every mechanism and of every protection that claims a guarantee, at epsilon 2."""
    from tests.laws.test_audits import HONEST

    rows = [audited(mechanism_subject(name, 2.0, DELTA), name) for name in MECHANISMS]
    return rows + [
        audited(protection_subject(name, values, delta=DELTA), case) for case, (name, values) in HONEST.items()
    ]


def variant_rows() -> list[dict[str, Any]]:
    """Return the audit of every broken variant of the tests."""
    from tests.laws.test_audits import BROKEN

    return [audited(make(), variant) for variant, make in BROKEN.items()]


def word_rows() -> list[dict[str, Any]]:
    """Return the audits of sanitizers with equal epsilon per word on part of MiniLM's vocabulary."""
    from discreet.protections.words.swap import WordSwap
    from discreet.protections.words.table import WordTable

    whole = WordTable.of_encoder()
    places = torch.arange(0, len(whole.words), max(1, len(whole.words) // 1500))
    chosen = [place for place in places.tolist() if whole.words[place].isalpha()]
    vectors = whole.vectors[torch.tensor(chosen)]
    table = WordTable("part of minilm", tuple(whole.words[i] for i in chosen), vectors, vectors, whole.tokenizer)
    rows = []
    for epsilon in (4.0, 16.0, 32.0):
        for mechanism in ("santext", "noise"):
            subject = words_subject(WordSwap(table, epsilon, mechanism))
            result = audit_subject(subject, delta=DELTA, rng=Rng(5), draws=60_000, canaries=2000)
            rows.append({"mechanism": mechanism, "words": len(chosen), "epsilon per word": epsilon, **row_of(result)})
    return rows


def main() -> None:
    """Measure and print a table; save it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gaussian", "truth", "checks", "opake", "protections", "variants", "words"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--canaries", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    measure = {
        "gaussian": lambda: gaussian_rows(asked.runs, asked.canaries),
        "truth": lambda: truth_rows(asked.runs, asked.canaries),
        "checks": lambda: check_rows(asked.runs),
        "opake": lambda: opake_rows(asked.runs, asked.canaries),
        "protections": protection_rows,
        "variants": variant_rows,
        "words": word_rows,
    }
    began = time.monotonic()
    rows = measure[asked.what]()
    for row in rows:
        print(" | ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    print(f"{time.monotonic() - began:.0f} s; epsilon of mu 1 is {gaussian_epsilon(1.0, DELTA):.4f}")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
