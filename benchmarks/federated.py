"""Federated training beside central training, with Flower's processes over loopback.

    python -m benchmarks.federated accuracy DATA/sst2 --out fed.json          # 10,000 sentences, 4 clients, 3 seeds
    python -m benchmarks.federated wire DATA/sst2 --out wire.json             # captured traffic, without and with TLS
    python -m benchmarks.federated faults --out faults.json                   # kill client and server, three times
    python -m benchmarks.federated attacks --out attacks.json                 # DAGER and 1-of-n on recorded messages

The encoder is frozen and its outputs are computed once per client, so that the runs fit two cores. The clients' rows
are the same for all seeds, in a file for each client. Results are appended to the JSON file as they arrive.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.wiretap import wiretap
from discreet.accounting.ledger import Ledger
from discreet.core.files import load_tensors
from discreet.core.randomness import Rng
from discreet.data.corpus import equal_clients
from discreet.data.sources import TextSource
from discreet.federated.processes import Cluster, running
from discreet.federated.run import FederateOptions, federate, run_in_process, settled
from discreet.federated.settings import FILES, Federation
from discreet.models.build import ready
from discreet.models.classifier import Classifier
from discreet.models.settings import TEXTHIDE_HIDDEN, ModelSettings, TrainSettings
from discreet.protections.base import Protection, RepresentationProtection
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide
from discreet.runs.checkpoint import LEDGER
from discreet.training.evaluation import evaluate
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan

CLIENTS = 4


class Method(NamedTuple):
    """A method with its settings; the batch size is that of all clients together."""

    protect: Protection | None
    head: str
    epochs: float
    batch_size: int
    exchange: str
    local_steps: int = 1
    learning_rate: float | None = None
    hidden: tuple[int, ...] = TEXTHIDE_HIDDEN


METHODS = {
    "plain, weights": Method(None, "linear", 20, 128, "weights", 79),
    "plain, gradients": Method(None, "linear", 10, 1024, "gradients"),
    "texthide (256, 4), weights": Method(TextHide(256, 4), "mlp", 20, 128, "weights", 79),
    "texthide (256, 4), gradients": Method(TextHide(256, 4), "mlp", 20, 512, "gradients", 1, 1e-2, (1024,)),
    "dp-sgd, epsilon 8": Method(DPSGD(epsilon=8.0), "linear", 10, 1250, "gradients"),
}


class Results:
    """A JSON file of results, written after each one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def has(self, **about: Any) -> bool:
        return any(all(row.get(key) == value for key, value in about.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        self.path.write_text(json.dumps(self.rows, indent=1) + "\n")
        print(json.dumps(row)[:400], flush=True)


def client_files(data: Path, rows: int, folder: Path) -> tuple[list[str], str]:
    """Write one file per client and one of all of them, and return their paths; the rows are those of `rows`."""
    corpus = TextSource(str(data), rows=rows, seed=0).load().split("train")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for client, part in enumerate(equal_clients(corpus, CLIENTS)):
        paths.append(str(write_rows(folder / f"client-{client}.csv", corpus.take(part))))
    return paths, str(write_rows(folder / "all.csv", corpus))


def write_rows(path: Path, corpus: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(
            (text, corpus.label_names[label]) for text, label in zip(corpus.texts, corpus.labels, strict=True)
        )
    return path


def settings_of(method: str, seed: int, files: list[str], validation: str, names: tuple[str, ...]) -> Federation:
    about = METHODS[method]
    return Federation(
        TextSource(files[0], validation=validation, classes=names),
        ModelSettings(train="head", head=about.head, hidden=about.hidden),
        TrainSettings(epochs=about.epochs, batch_size=about.batch_size, learning_rate=about.learning_rate),
        CLIENTS,
        about.protect,
        exchange=about.exchange,
        local_steps=about.local_steps,
        partition=FILES,
        files=tuple(files),
        seed=seed,
        classes=names,
        wait_seconds=120.0,
    )


def central(settings: Federation, everything: str, cache: Path) -> dict[str, Any]:
    """Train centrally on all clients' rows, with the settings of a federation, and return the accuracy."""
    corpus = replace(settings.data, source=everything).load()
    model = Classifier.build(settings, settings.model, rng=Rng(settings.seed).fork("model"))
    plan = TrainingPlan.make(model, corpus, protect=settings.protect, training=settings.training, seed=settings.seed)
    start = time.monotonic()
    secret = Rng.secret() if isinstance(plan.protect, RepresentationProtection) else None
    result = train(model, corpus, plan, secret=secret, job=Job(cache=cache))
    model.eval()
    rows = ready(model, corpus.split("validation"), cache)
    accuracy = evaluate(model, rows)["accuracy"]
    views = None if secret is None else plan.protect.views(model.width, secret)  # type: ignore[union-attr]
    averaged = None if views is None else evaluate(model, rows, query=views)["accuracy"]
    epsilon = None if result.guarantee is None or not result.guarantee.exists else result.guarantee.epsilon
    seconds = time.monotonic() - start
    return {
        "accuracy": accuracy, "averaged": averaged, "steps": result.steps, "epsilon": epsilon, "seconds": seconds,
    }  # fmt: skip


def accuracy(options: argparse.Namespace) -> None:
    results, work = Results(options.out), options.work
    files, everything = client_files(options.data, options.rows, work / "rows")
    validation = str(next(options.data.glob("validation.*")))
    names = TextSource(everything, validation=validation).load().label_names
    cache = work / "cache"
    for seed in range(options.seeds):
        for method in options.methods or METHODS:
            settings = settings_of(method, seed, files, validation, names)
            if not results.has(what="central", method=method, seed=seed):
                results.add(what="central", method=method, seed=seed, **central(settings, everything, cache))
            if not results.has(what="processes", method=method, seed=seed):
                out = work / f"run-{seed}-{re.sub(r'[^a-z0-9]+', '-', method)}"
                for path in (out, out.with_name(out.name + ".unfinished")):
                    shutil.rmtree(path, ignore_errors=True)
                start = time.monotonic()
                result = federate(settings, out, FederateOptions(cache=cache))
                stated = result["guarantee"]
                results.add(
                    what="processes",
                    method=method,
                    seed=seed,
                    accuracy=result["utility"]["accuracy"],
                    averaged=result.get("utility_averaged", {}).get("accuracy"),
                    by_client=[one.get("accuracy") for one in result["clients"].values()],
                    steps=result["steps"],
                    rounds=result["rounds"],
                    epsilon=None if stated is None else stated["epsilon"],
                    log=result["log"],
                    seconds=time.monotonic() - start,
                )
    summary(results)


def summary(results: Results) -> None:
    print("\n| method | accuracy | central | 4 processes | difference | epsilon |\n|---|---|---|---|---|---|")
    for method, (kind, label) in itertools.product(METHODS, (("accuracy", "one mask"), ("averaged", "all masks"))):
        means = {}
        for what in ("central", "processes"):
            rows = [row for row in results.rows if row.get("what") == what and row.get("method") == method]
            rows = [row for row in rows if row.get(kind) is not None]
            if rows:
                mean = 100 * statistics.mean(row[kind] for row in rows)
                means[what] = (mean, len(rows), rows[0].get("epsilon"))
        if len(means) == 2:
            (c, n, ce), (p, m, pe) = means["central"], means["processes"]
            print(f"| {method} | {label} | {c:.2f} (n = {n}) | {p:.2f} (n = {m}) | {p - c:+.2f} | {ce} / {pe} |")


def same(options: argparse.Namespace) -> None:
    """Compare one process with Flower's processes, with the same seed."""
    results, work = Results(options.out), options.work
    files, everything = client_files(options.data, options.rows, work / "rows")
    validation = str(next(options.data.glob("validation.*")))
    names = TextSource(everything, validation=validation).load().label_names
    for method in options.methods or METHODS:
        settings = replace(settings_of(method, 0, files, validation, names), noise_seed=0)
        settings, _ = settled(settings)
        folders = {kind: work / f"same-{kind}" for kind in ("one", "many")}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        run_in_process(settings, folders["one"], FederateOptions(cache=work / "cache"))
        with running(settings, folders["many"], cache=work / "cache") as cluster:
            supervise(cluster, (folders["many"] / "server" / "result.json").exists)
        one, many = (load_tensors(folder / "server" / "final.safetensors")[0] for folder in folders.values())
        difference = max(float((one[name] - many[name]).abs().max()) for name in one)
        results.add(what="same", method=method, largest_difference=difference)


def supervise(cluster: Cluster, done: Any, seconds: float = 3600) -> None:
    end = time.monotonic() + seconds
    while not done():
        failed = cluster.workspace / "server" / "failed.txt"
        if failed.exists():
            raise RuntimeError(failed.read_text())
        if time.monotonic() > end:
            raise TimeoutError("the federation did not end in time")
        cluster.supervise()
        time.sleep(0.05)


def wire(options: argparse.Namespace) -> None:
    """Capture the traffic between SuperNodes and SuperLink, and look for words of the clients' texts in it."""
    results, work = Results(options.out), options.work
    files, everything = client_files(options.data, min(options.rows, 400), work / "few-rows")
    validation = str(next(options.data.glob("validation.*")))
    names = TextSource(everything, validation=validation).load().label_names
    texts = TextSource(everything, validation="0").load().texts
    words = sorted({word for text in texts for word in re.findall(r"[a-z]{6,}", text.lower())})
    settings = settings_of("plain, gradients", 0, files, validation, names)
    settings = replace(settings, training=TrainSettings(epochs=2, batch_size=100))
    settings, _ = settled(settings)
    baseline = None
    for tls in (False, True):
        folder = work / f"wire-{tls}"
        shutil.rmtree(folder, ignore_errors=True)
        with wiretap() as tap, running(settings, folder, tls=tls, connect_to=tap.forward_to) as cluster:
            supervise(cluster, (folder / "server" / "result.json").exists)
        data = b"\n".join(tap.captured())
        readable = b" ".join(re.findall(rb"[ -~]{4,}", data)).lower()
        present = [word for word in words if re.search(rb"(?<![a-z])" + word.encode() + rb"(?![a-z])", readable)]
        sentences = [text for text in texts if len(text) > 20 and text.lower().encode() in data.lower()]
        protocol = [
            w for w in ("flwr", "http/1", "post", "head.weight", "train", "content-type") if w.encode() in data.lower()
        ]
        # Random bytes hold short letters by chance, so the longest readable run is stated too.
        longest = max((len(run) for run in re.findall(rb"[ -~]+", data)), default=0)
        baseline = baseline or present
        results.add(
            what="wire", tls=tls, bytes=len(data), words_looked_for=len(words), words_found=present,
            sentences_found=len(sentences), protocol_found=protocol, longest_readable=longest,
        )  # fmt: skip


def reached(progress: Path, rounds: int) -> bool:
    return progress.exists() and len(progress.read_text().splitlines()) >= rounds


def faults(options: argparse.Namespace) -> None:
    """Kill a client, the SuperLink and the ServerApp, each three times, and compare ledgers with what was received."""
    results, work = Results(options.out), options.work
    data = TextSource("notes", rows=400, unit=None)
    settings = Federation(
        data,
        ModelSettings(train="head"),
        TrainSettings(epochs=40, batch_size=40),
        CLIENTS,
        DPSGD(epsilon=8.0),
        partition="unit",
        wait_seconds=10.0,
    )
    settings, _ = settled(settings)
    for victim in options.victims:
        folder = work / f"faults-{victim}"
        shutil.rmtree(folder, ignore_errors=True)
        progress = folder / "server" / "progress.jsonl"
        start = time.monotonic()
        with running(settings, folder, cache=work / "cache") as cluster:
            for at in (2, 6, 10):
                supervise(cluster, partial(reached, progress, at))
                if victim == "client":
                    cluster.nodes[1].kill()
                elif victim == "superlink" and cluster.superlink is not None:
                    cluster.superlink.kill()
                else:
                    os.kill(int((folder / "server" / "pid").read_text()), signal.SIGKILL)
            supervise(cluster, (folder / "server" / "result.json").exists)
        result = json.loads((folder / "server" / "result.json").read_text())
        log = (folder / "server" / "log.txt").read_text().splitlines()
        ledgers = {}
        for client in range(CLIENTS):
            statement = Ledger.read(folder / f"client-{client}" / LEDGER)
            missed = sum(
                1
                for line in log
                if "without client" in line and re.search(rf"\b{client}\b", line.split("without client")[1])
            )
            stated = json.loads(result["clients"][str(client)]["guarantee"])
            ledgers[client] = {
                "spends": statement.spends, "received": result["rounds"] - missed, "epsilon": stated["epsilon"],
                "never_below": statement.spends >= result["rounds"] - missed,
            }  # fmt: skip
        results.add(
            what="faults", victim=victim, kills=3, rounds=result["rounds"], finished=True, ledgers=ledgers, log=log,
            seconds=time.monotonic() - start,
        )  # fmt: skip


def attacks(options: argparse.Namespace) -> None:
    """Run DAGER and 1-of-n on recorded messages under each way of protecting them."""
    from benchmarks.federated_attacks import run

    run(Results(options.out), options.work)


def parse() -> Iterator[argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "same", "wire", "faults", "attacks"])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--victims", nargs="*", default=["client", "superlink", "server app"])
    parser.add_argument("--work", type=Path, help="folder for rows, cache and runs; a temporary one by default")
    options = parser.parse_args()
    np.seterr(all="ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.work is not None:
        yield options
        return
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        yield options


if __name__ == "__main__":
    for chosen in parse():
        globals()[chosen.what](chosen)
