"""Small corpora and pairs of texts, private and not: which settings are best on held-out training rows, and what
`discreet train` reaches with its defaults.

    python -m benchmarks.small_corpora choose DATA --out choose.jsonl --workers 12 --device cuda   # settings
    python -m benchmarks.small_corpora final DATA --out final.jsonl --seeds 5 --device cuda        # defaults
    python -m benchmarks.small_corpora choose DATA --only 'mrpc-*' --rows 200 --device cpu         # a small try

DATA holds the folders mrpc, stsb, cola and sst2. `choose` holds out a tenth of the training rows and never reads the
validation split. `final` trains on all training rows with secret noise and evaluates on the validation split. One JSON
object a run is appended to the file as soon as it is known.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from discreet.core.device import find_device
from discreet.core.errors import DiscreetError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, hold_out
from discreet.data.sources import Columns, load
from discreet.models.build import cache_folder
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide
from discreet.training.evaluation import assess
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan, model_settings

METRIC = {"mrpc": "matthews", "stsb": "pearson", "cola": "matthews", "sst2": "accuracy"}
SCORES = {"stsb": (0.0, 5.0)}  # the range of the scores, from the definition of the task


@dataclass(frozen=True)
class Recipe:
    """The settings of one run; None is the default of `discreet train`."""

    data: str
    epsilon: float | None = None  # of dp-sgd
    protect: str | None = None
    pairs: str | None = None
    part: str | None = None
    head: str | None = None
    epochs: float | None = None
    batch_size: int | None = None
    rate: float | None = None
    head_rate: float | None = None
    clip_norm: float | None = None
    weight_decay: float | None = None
    averaging: float = 0.0
    optimizer: str = "adamw"
    pooling: str | None = None

    @property
    def name(self) -> str:
        """Name that --only is matched with."""
        kind = self.protect or ("plain" if self.epsilon is None else f"epsilon{self.epsilon:g}")
        return f"{self.data}-{kind}-{self.pairs}-{self.part}"

    def protection(self) -> Protection | None:
        """Return the protection of the run, or None."""
        if self.protect == "texthide":
            return TextHide(masks=256, mix=4)
        if self.epsilon is None:
            return None
        return DPSGD(epsilon=self.epsilon, **({} if self.clip_norm is None else {"clip_norm": self.clip_norm}))


def recipes() -> list[Recipe]:
    """Return the settings to choose from, the most promising first."""
    private: list[Recipe] = []
    for data, clips in (("stsb", (0.1, 5.0)), ("mrpc", (0.1, 1.0))):
        own = Recipe(data, 8.0, pairs="separate", batch_size=1024)
        for clip in clips:
            base = replace(own, clip_norm=clip)
            private += [replace(base, part="all", epochs=20, rate=rate) for rate in (3e-4, 1e-4, 1e-3)]
            private += [replace(base, part="lora-8", epochs=20, rate=rate) for rate in (2e-3, 5e-4, 5e-3)]
            full = replace(base, part="head", batch_size=1 << 20)
            private += [replace(full, epochs=40, rate=rate) for rate in (0.02, 0.2)]
        private += [replace(own, part="top-2", epochs=20, rate=rate, clip_norm=clips[0]) for rate in (3e-4, 1e-3)]
        private += [replace(own, part="all", epochs=40, rate=rate, clip_norm=clips[0]) for rate in (1e-4, 3e-4)]
        private += [replace(own, part=part, epochs=20, rate=rate, clip_norm=clips[0], epsilon=3.0)
                    for part, rate in (("all", 1e-4), ("all", 3e-4), ("lora-8", 5e-4), ("lora-8", 2e-3))]  # fmt: skip
    plain: list[Recipe] = []
    for data in ("mrpc", "stsb"):
        for pairs, choices in (
            ("joint", ((3, 5e-5), (5, 5e-5), (5, 1e-4), (10, 5e-5))),
            ("separate", ((5, 2e-5), (5, 5e-5), (10, 5e-5))),
        ):
            plain += [
                Recipe(data, pairs=pairs, part="all", epochs=epochs, batch_size=32, rate=rate)
                for epochs, rate in choices
            ]
        hidden = Recipe(data, protect="texthide", batch_size=32, rate=5e-5, head_rate=10.0)
        for pairs in ("separate", "joint"):
            plain += [
                replace(hidden, pairs=pairs, part="all", head=head, epochs=epochs)
                for head, epochs in (("linear", 10), ("mlp", 10), ("mlp", 20))
            ]
        plain.append(replace(hidden, pairs="separate", part="head", head="linear", epochs=20, rate=2e-3, head_rate=1.0))
    cola = [
        Recipe("cola", 8.0, part="all", epochs=30, batch_size=2048, rate=1e-3),
        Recipe("cola", 8.0, part="all", epochs=30, batch_size=2048, rate=1e-3, pooling="cls"),
        Recipe("cola", 8.0, part="lora-8", epochs=30, batch_size=2048, rate=5e-3),
    ]
    ahead = max(len(private), len(plain))
    mixed = [one for pair in zip(private + [None] * ahead, plain + [None] * ahead, strict=False) for one in pair]
    return [*(one for one in mixed if one is not None), *cola]


def corpus_of(folder: Path, data: str, rows: int | None) -> Corpus:
    """Return a corpus; `rows` keeps the first training rows."""
    pairs = data in ("mrpc", "stsb")
    label, quoting = "score" if data == "stsb" else "label", None if pairs else "none"
    columns = Columns(text_pair="text_pair" if pairs else None, label=label, quoting=quoting)
    corpus = load(str(folder / data), columns, task="regression" if data == "stsb" else None)
    if rows is None:
        return corpus
    kept = [row for row, split in enumerate(corpus.splits) if split == "train"][:rows]
    return corpus.take([*kept, *(row for row, split in enumerate(corpus.splits) if split == "validation")])


def run(recipe: Recipe, corpus: Corpus, device: str, seed: int) -> dict[str, Any]:
    """Train with these settings and return the utility on the validation rows of the corpus."""
    began = time.monotonic()
    protect = recipe.protection()
    wanted = {"pairs": recipe.pairs, "train": recipe.part, "head": recipe.head, "pooling": recipe.pooling}
    chosen = model_settings(
        {name: value for name, value in wanted.items() if value is not None},
        protect,
        corpus.split("train").unit_count,
        corpus.task,
        pairs=corpus.is_pairs,
    )
    scores = SCORES.get(recipe.data, (0.0, 1.0))
    model = Classifier.build(corpus, chosen, rng=Rng(seed).fork("model"), score_range=scores).to(find_device(device))
    settings = TrainSettings(
        epochs=recipe.epochs,
        batch_size=None if recipe.batch_size is None else min(recipe.batch_size, corpus.split("train").unit_count),
        learning_rate=recipe.rate,
        head_rate=recipe.head_rate,
        weight_decay=recipe.weight_decay,
        averaging=recipe.averaging,
        optimizer=recipe.optimizer,
    )
    plan = TrainingPlan.make(model, corpus, protect=protect, training=settings, seed=seed)
    done = train(model, corpus, plan, job=Job(cache=cache_folder()))
    assessment = assess(model, corpus.split("validation"))
    quality, classes = assessment.quality, assessment.by_class
    guarantee = done.guarantee
    return {
        "name": recipe.name,
        "seed": seed,
        "value": quality.metrics[METRIC[recipe.data]],
        "utility": quality.metrics,
        "by_class": {one["class"]: one["value"] for one in classes},
        "constant": quality.constant,
        "epsilon": guarantee.epsilon if guarantee is not None and guarantee.exists else None,
        "certified": None if guarantee is None else guarantee.certified,
        "delta": plan.delta,
        "steps": done.steps,
        "seconds": round(time.monotonic() - began, 1),
        "train_seconds": round(done.seconds, 1),
        "recipe": {key: value for key, value in asdict(recipe).items() if value is not None},
        "model": {"train": chosen.train, "pairs": chosen.pairs, "head": chosen.head},
    }


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one line to a file that several processes write to."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row) + "\n")


def work(asked: argparse.Namespace, jobs: Any) -> None:
    """Run jobs until there are none."""
    corpora: dict[str, Corpus] = {}
    while (job := jobs.get()) is not None:
        recipe, seed = job
        if recipe.data not in corpora:
            corpus = corpus_of(asked.data, recipe.data, asked.rows)
            if asked.what == "choose":
                corpus = hold_out(corpus.split("train"), 0.1)
            corpora[recipe.data] = corpus
        try:
            row = run(recipe, corpora[recipe.data], asked.device, seed)
        except DiscreetError as error:
            row = {"name": recipe.name, "seed": seed, "error": str(error), "recipe": asdict(recipe)}
        append(asked.out, row)
        print(row["name"], row.get("value", row.get("error")), row.get("seconds"), flush=True)


def finals() -> list[Recipe]:
    """Return the runs whose figures are reported, with the defaults of `discreet train` for each corpus."""
    return [
        *(Recipe(data, epsilon) for data in ("mrpc", "stsb") for epsilon in (8.0, 3.0, None)),
        *(Recipe(data, protect="texthide") for data in ("mrpc", "stsb")),
        Recipe("cola", 8.0),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "final"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("small_corpora.jsonl"))
    parser.add_argument("--only", default="*", help="glob over the names of runs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, help="use this many training rows")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    wanted = recipes() if asked.what == "choose" else finals()
    methods = multiprocessing.get_context("spawn")
    jobs = methods.Queue()
    for seed in range(asked.seeds):
        for recipe in wanted:
            if fnmatchcase(recipe.name, asked.only):
                jobs.put((recipe, seed))
    for _ in range(asked.workers):
        jobs.put(None)
    workers = [methods.Process(target=work, args=(asked, jobs)) for _ in range(asked.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
