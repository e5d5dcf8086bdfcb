"""DAGER and 1-of-n on recorded messages of federated runs: plain, TextHide, client DP-SGD and a secure sum.

Four clients train all layers of MiniLM on generated notes, truncated to eight words, with batches of two texts each.
`benchmarks.federated attacks` runs it.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

from discreet.attacks.identification import OneOfN
from discreet.attacks.span.dager import Dager
from discreet.core.errors import UnsupportedError
from discreet.data.notes import notes
from discreet.data.sources import TextSource
from discreet.experiment.attack.recorded import Recorded
from discreet.experiment.attack.request import AttackRequest
from discreet.experiment.attack.runner import attack_once
from discreet.federated.aggregation import Aggregation, Mean
from discreet.federated.run import FederateOptions, federate
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide

CLIENTS, ROWS, WORDS, ROUNDS = 4, 80, 8, 3
VIEWS = ("server", "client-0", "wire")
WAYS: dict[str, tuple[Protection | None, Aggregation]] = {
    "plain": (None, Mean()),
    "texthide (256, 2)": (TextHide(256, 2), Mean()),
    "dp-sgd at the client, epsilon 8": (DPSGD(epsilon=8.0), Mean()),
    "secure sum": (None, SecureSum()),
}


def run(results: Any, work: Path) -> None:
    """Train each federation once, with recorded messages, and attack every view of it."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "notes.csv"
    corpus = notes(count=400, seed=0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        texts = dict.fromkeys(" ".join(text.split()[:WORDS]) for text in corpus.texts)
        labels = dict(zip((" ".join(t.split()[:WORDS]) for t in corpus.texts), corpus.labels or (), strict=False))
        writer.writerows((text, corpus.label_names[labels[text]]) for text in list(texts)[:ROWS])
    for name, (protect, aggregation) in WAYS.items():
        cells = [(view, attack) for view in VIEWS for attack in ("dager", "one-of-n")]
        if all(results.has(what="attacks", way=name, view=view, attack=attack) for view, attack in cells):
            continue
        folder = work / "recorded"
        for one in (folder, folder.with_name("recorded.unfinished")):
            shutil.rmtree(one, ignore_errors=True)
        size = 2 * CLIENTS
        train = TrainSettings(
            epochs=ROUNDS / -(-ROWS // size), batch_size=size, learning_rate=1e-3, optimizer="sgd", gradient_norm=1e9
        )
        settings = Federation(
            TextSource(str(path), validation="0"),
            ModelSettings(dropout=0.0, head="mlp" if isinstance(protect, TextHide) else "linear"),
            train,
            CLIENTS,
            protect,
            aggregation,
            record=True,
        )
        federate(settings, folder, FederateOptions(in_process=True))
        for view in VIEWS:
            for attack, request in (
                ("dager", AttackRequest(Dager(), name="dager", examples=12, seconds=30.0)),
                ("one-of-n", AttackRequest(OneOfN(), name="one-of-n", examples=12, candidates=16)),
            ):
                about = {"what": "attacks", "way": name, "view": view, "attack": attack}
                if results.has(**about):
                    continue
                try:
                    found = attack_once(request, Recorded(folder, view))
                except UnsupportedError as error:
                    results.add(**about, value=None, why=str(error))
                    continue
                leak = found.leakages[0]
                exact = [one.scores.get("exact") for one in found.examples]
                results.add(
                    **about,
                    metric=leak.metric,
                    value=leak.value,
                    low=leak.low,
                    high=leak.high,
                    n=leak.n,
                    chance=leak.chance,
                    exact=None if None in exact or not exact else sum(exact) / len(exact),  # type: ignore[arg-type]
                    texts_in_a_gradient=found.release["batch_size"],
                    seconds=found.seconds,
                )
        shutil.rmtree(folder, ignore_errors=True)
