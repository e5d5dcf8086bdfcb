"""Run folders: model, tokenizer, settings, metrics and model card of a training run, written atomically.

The model card describes the purpose, the utility and the guarantee of a model, without any training text.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from discreet.catalog import protection_from_table
from discreet.core.errors import DiscreetError, ModelError, OutputError, first_line, setting, shown
from discreet.core.files import (
    DIGESTS,
    FILES,
    UNFINISHED,
    cannot_write,
    check_digests,
    digest_of_release,
    load_tensors,
    save_tensors,
    sync_path,
    sync_tree,
    with_digests,
    write_atomic,
)
from discreet.core.guarantee import Adjacency, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.settings import as_dict, as_toml, parse, read_values
from discreet.core.task import HasClasses, Task
from discreet.data.canaries import Planting
from discreet.data.sources import TextSource
from discreet.metrics.utility import in_sentences
from discreet.models.base import TextModel
from discreet.models.bilstm import BiLSTM
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.encoder import BILSTM, CAUSAL, WRONG_KIND, assemble, fresh_module, load_tokenizer, save_tokenizer
from discreet.models.language_model import LanguageModel
from discreet.models.pretrained import save_pretrained
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.runs import checkpoint
from discreet.runs.checkpoint import LEDGER

if TYPE_CHECKING:
    from discreet.accounting.ledger import Statement
    from discreet.models.base import TextModel

STATED = ("epsilon", "delta", "unit", "adjacency", "accountant", "certified", "caveats")  # in a card


def front_matter(task: str | None, guarantee: Guarantee | None, library: str | None = "discreet") -> str:
    """Return the front matter of a card; a data card has no task.

    >>> print(front_matter("classification", None))
    ---
    library_name: "discreet"
    pipeline_tag: "text-classification"
    tags:
    - "discreet"
    ---
    """
    return f"---\n{in_yaml(card_values(task, guarantee, library))}---"


def card_values(task: str | None, guarantee: Guarantee | None, library: str | None = "discreet") -> dict[str, Any]:
    """Return the values of the front matter by name."""
    pipeline = None if task is None else Task(task).pipeline
    values: dict[str, Any] = {} if library is None else {"library_name": library}
    values |= {} if pipeline is None else {"pipeline_tag": pipeline}
    values["tags"] = ["discreet"]
    if guarantee is not None and guarantee.exists:
        stated = guarantee.as_dict()
        values["tags"] += ["differential-privacy", "differential_privacy"]
        values["differential_privacy"] = {name: stated[name] for name in STATED}
    return values


def in_yaml(values: Mapping[str, Any]) -> str:
    """Return values as YAML in block style.

    Strings are in double quotes, because YAML 1.2 reads a plain `1e-05` as a number, and YAML 1.1 does not.

    >>> print(in_yaml({"delta": 1e-05, "tags": ["1e-05"]}), end="")
    delta: 1.0e-05
    tags:
    - "1e-05"
    """
    import yaml

    class Quoting(yaml.SafeDumper):  # type: ignore[misc]
        def represent_mapping(self, *settings: Any) -> Any:
            node = super().represent_mapping(*settings)
            for key, _ in node.value:
                key.style = None
            return node

        def ignore_aliases(self, data: object) -> bool:
            return True  # a list that occurs twice is written twice

    def quoted(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')

    Quoting.add_representer(str, quoted)
    Quoting.add_multi_representer(str, quoted)  # members of enumerations
    text: str = yaml.dump(dict(values), Dumper=Quoting, sort_keys=False, allow_unicode=True, width=math.inf)
    return text


def model_card(
    model: TextModel,
    settings: RunSettings,
    metrics: dict[str, Any],
    guarantee: Guarantee | None,
    opened_by: str | None = None,
) -> str:
    """Return a model card in Markdown, of a run folder or of a folder that a class of transformers opens."""
    from discreet.models.pretrained import HEAD
    from discreet.runs.checkpoint import trained

    count = sum(p.numel() for p in trained(model).values())
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in (metrics.get("utility") or {}).items())
    scores = f"| metric | value |\n|---|---|\n{rows}" if rows else "Not measured: no rows were held out."
    if metrics.get("quality"):
        scores += "\n\n" + " ".join(in_sentences(metrics["quality"]))
    if metrics.get("utility_by_class"):
        parts_of_classes = (f"{one['class']} {one['value']:.3f}" for one in metrics["utility_by_class"])
        scores += f"\n\nRecall by class: {', '.join(parts_of_classes)}."
    if metrics.get("public"):
        scores += "\n\n" + " ".join(beside_public(metrics["public"], metrics["utility"], guarantee is not None))
    privacy = "No privacy guarantee: this model was trained without protection and may reveal its training text."
    if guarantee is not None:
        privacy = guarantee.sentence()
    title, purpose, parts, command = _purpose(model, settings)
    if opened_by is not None:
        command = f'transformers.{opened_by}.from_pretrained("THIS_FOLDER")'
        if opened_by == "AutoModel":
            purpose += f" This folder holds its encoder; the layers behind it are in {HEAD}."
    rate = "default" if settings.training.learning_rate is None else f"{settings.training.learning_rate:g}"
    library = "discreet" if opened_by is None else "transformers"
    return f"""{front_matter(model.task, guarantee, library)}
# {title}

{purpose}

| part | choice |
|---|---|
{parts}
| trained | {settings.model.train}, {count:,} weights |
| longest text | {model.max_length} tokens |
| epochs, batch, rate | {settings.training.epochs:g}, {settings.training.batch_size}, {rate} |
| seed | {settings.seed} |

## Utility on {"held-out text" if metrics.get("evaluated_on") != "train" else "the training text itself"}

{scores}

## Privacy

{privacy}
{describe_protection(metrics, guarantee)}
## Use

```
{command}
```
"""


def _purpose(model: TextModel, settings: RunSettings) -> tuple[str, str, str, str]:
    """Return the title of a model card, the purpose of the model, the table rows of its parts, and its command."""
    about = settings.model
    if model.task.is_language:
        parts, command = f"| language model | {about.encoder} |", "discreet generate THIS_FOLDER"
        return "A language model", "It continues texts.", parts, command
    parts = f"| encoder | {about.encoder}, pooled by `{about.pooling}` |\n| head | {about.head} |"
    subject, command = "pairs of texts" if settings.pairs else "texts", "discreet predict THIS_FOLDER texts.txt"
    if not model.task.has_classes:
        return "A text scorer", f"It gives {subject} a score.", parts, command
    classes = f"{len(model.label_names)} classes: {', '.join(model.label_names)}"
    return "A text classifier", f"It sorts {subject} into {classes}.", parts, command


def describe_protection(metrics: dict[str, Any], guarantee: Guarantee | None) -> str:
    """Return the protection of a run as text, and its epsilon under each adjacency."""
    if "protection" not in metrics or guarantee is None:
        return ""
    from discreet.protections.base import in_words

    kind = "Epsilon" if guarantee.certified else "Estimates of epsilon"
    settings = in_words(metrics["protection"])
    columns = ", ".join(
        f"{name} {'not defined' if value is None else in_digits(value)}"
        for name, value in metrics["epsilon_by_adjacency"].items()
    )
    steps = f"{metrics['steps']} steps"
    if "counted_steps" in metrics:
        steps = f"stopped early after {steps}, all {metrics['counted_steps']} planned steps counted"
    return f"\nProtection: {settings}; {steps}. {kind} at the same delta: {columns}.\n"


def beside_public(row: Mapping[str, Any], utility: Mapping[str, float], private: bool) -> list[str]:
    """Return the public baseline of a run as sentences; they say so if a model is no better.

    >>> row = {"utility": {"pearson": 0.87}, "metric": "pearson", "is_beaten": False, "threshold": 0.5}
    >>> beside_public(row, {"pearson": 0.84}, private=True)[-1]
    'Warning: the private model is no better (0.840): it costs privacy and gains nothing.'
    """
    name, value = row["metric"], utility[row["metric"]]
    what = "the model trained on the public text alone"
    if "threshold" in row:  # a cosine has one
        rule = f" above {row['threshold']:g}" if name == "matthews" else ""
        what = f"the cosine of the encoder's two vectors{rule}"
    sentences = [f"Without any private data, {what} reaches {name} {row['utility'][name]:.3f}."]
    if not row["is_beaten"]:
        kind, loss = ("private ", ": it costs privacy and gains nothing") if private else ("", "")
        sentences.append(f"Warning: the {kind}model is no better ({value:.3f}){loss}.")
    return sentences


SECRET = "secret"
SEARCH = "search.json"  # progress of an unfinished search for settings, with files and folders that begin with:
BEST, TRIAL = "best-", "trial-"
_FORMAT = 5


@dataclass(frozen=True)
class RunChoices:
    """The choices that define a training run; settings that `training` leaves open are chosen by the plan.

    `canaries` are planted in the training text to measure memorization.
    """

    data: TextSource
    model: ModelSettings
    training: TrainSettings
    protect: Protection | None = None
    seed: int = 0
    population: int | None = None
    canaries: Planting | None = None


@dataclass(frozen=True)
class RunSettings(RunChoices, HasClasses):
    """The choices of a run and the facts of its data that are needed to load it; `settings.toml` in its folder."""

    task: Task = Task.CLASSIFICATION
    classes: tuple[str, ...] = ()
    pairs: bool = False
    format: int = _FORMAT

    @property
    def adjacency(self) -> Adjacency:
        """Adjacency that its splits were selected for."""
        return Adjacency.ZERO_OUT if self.population is None else Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class Run:
    """A finished run, loaded from its folder."""

    model: TextModel
    settings: RunSettings
    metrics: dict[str, Any] = field(repr=False)

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of the run, or None without protection."""
        stated = self.metrics.get("guarantee")
        return None if stated is None else Guarantee.from_dict(stated)

    @property
    def digest(self) -> str | None:
        """The digest that identifies the run, for results of attacks and audits."""
        return digest_of_release(self.metrics)

    def save_pretrained(self, folder: Path | str) -> str:
        """Write the model as a folder that transformers opens, with a model card; return the class that opens it.

        Guarantee: that of the run, unchanged; writing is post-processing.
        """

        def card(kind: str) -> str:
            return model_card(self.model, self.settings, self.metrics, self.guarantee, kind)

        return save_pretrained(self.model, folder, card)


def workspace_of(out: Path, *, resume: bool) -> Path:
    """Return the folder in which a run with output `out` is prepared; reject an existing output or unfinished run."""
    if not out.name or out.name == "..":
        raise OutputError(
            f"Expected {setting('out')} to name a new folder, got {str(out)!r}. Give it a name, such as runs/a."
        )
    workspace = out.with_name(out.name + UNFINISHED)
    if out.exists():
        raise OutputError(
            f"Expected no folder at {str(out)!r}. It exists; choose another {setting('out')}, or delete it."
        )
    if resume and not workspace.exists():
        raise OutputError(
            f"Expected an unfinished run at {str(workspace)!r}. There is none; start without {setting('resume')}."
        )
    if resume:
        checkpoint.check_format(workspace)
    if workspace.exists() and not resume:
        # A federated run has those of its server and its clients in folders of their own.
        if any(workspace.rglob(checkpoint.NAME)) or any(workspace.rglob("ledger*")):
            raise OutputError(
                f"Expected no unfinished run at {str(workspace)!r}. Resume it ({setting('resume', True)}), or delete "
                "it to start again."
            )
        shutil.rmtree(workspace)  # no step was saved in it
    return workspace


def check_kind(workspace: Path, *, search: bool) -> None:
    """Reject resuming a search as a training run, or a training run as a search."""
    searching = (workspace / SEARCH).exists()
    training = not searching and ((workspace / checkpoint.NAME).exists() or spent(workspace))
    if training if search else searching:
        names = ("training run", "search for settings")
        raise OutputError(
            f"Expected an unfinished {names[search]} at {str(workspace)!r}, got an unfinished {names[not search]}. "
            "Resume it with the command that started it."
        )


def begin(workspace: Path) -> bool:
    """Create the folder in which a run is prepared, and return whether it is new."""
    try:
        workspace.mkdir(parents=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and workspace.is_dir():
            return False
        raise cannot_write(workspace, error) from None
    return True


@contextmanager
def prepared(workspace: Path) -> Iterator[None]:
    """Create the folder in which a run is prepared; delete it if the run fails before a step is saved or spent.

    An existing folder is not deleted: another process may be about to spend in it.
    """
    created = begin(workspace)
    try:
        yield
    except DiscreetError:
        if created and not (workspace / checkpoint.NAME).exists() and not spent(workspace):
            shutil.rmtree(workspace, ignore_errors=True)
        raise


def spent(workspace: Path) -> bool:
    """Return whether the ledger of a run has any spends, or cannot be read."""
    if not any(workspace.glob("ledger*")):
        return False
    from discreet.accounting.ledger import Ledger

    try:
        return Ledger.read(workspace / LEDGER).spends > 0
    except DiscreetError:
        return True


def secret_of(workspace: Path) -> Rng:
    """Return the secret source of a run's batches and noise, seeded by the operating system.

    A resumed run must repeat its randomness, so the seed is stored in the workspace, readable by its owner only, and
    deleted when the run is finished. If the noise has a fixed seed, the names of spends still use this secret.
    """
    path = workspace / SECRET
    if not path.exists():
        from discreet.accounting.ledger import Ledger

        if (workspace / LEDGER).exists() and Ledger.read(workspace / LEDGER).spends:
            raise ModelError(
                f"Expected the secret of this run at {str(path)!r}. It is the seed of the noise and of the names of "
                "spends; without it no step can be repeated. Delete the folder and start again."
            )
        try:
            write_atomic(path, os.urandom(32).hex())
        except OSError as error:
            raise cannot_write(path, error) from None
    return Rng.secret(bytes.fromhex(path.read_text(encoding="ascii")))


def forget_secrets(folder: Path) -> None:
    """Delete the checkpoint, the seed of the noise and the trials of a search, which only an unfinished run needs."""
    for name in (checkpoint.NAME, checkpoint.PUBLIC_START, SECRET):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / checkpoint.PUBLIC, ignore_errors=True)
    if (folder / SEARCH).exists():
        for path in folder.glob(f"{BEST}*.safetensors"):
            path.unlink(missing_ok=True)
        for path in folder.glob(f"{TRIAL}*"):
            shutil.rmtree(path, ignore_errors=True)
        (folder / SEARCH).unlink()


def finish(
    workspace: Path,
    out: Path,
    model: TextModel,
    settings: RunSettings,
    metrics: dict[str, Any],
    guarantee: Guarantee | None = None,
) -> None:
    """Write a finished run into its workspace, and rename that atomically to `out`."""
    try:
        save_tensors(model.weights(), workspace / "model.safetensors", {"format": "pt", "discreet": str(_FORMAT)})
        save_tokenizer(model.tokenizer, workspace / "tokenizer")
        texts = {
            "encoder.json": encoder_config(model),
            "settings.toml": settings_text(settings),
            "README.md": model_card(model, settings, metrics, guarantee),
        }
        for name, text in texts.items():
            write_atomic(workspace / name, text, private=False)
        recorded = with_digests(metrics, files_of_release(workspace), ledgers_of(workspace))
        write_atomic(workspace / "metrics.json", json.dumps(recorded, indent=2) + "\n", private=False)
        sync_tree(workspace)
        # The ledger is written during training: its time would show how long private rows took, or how many trials
        # there were.
        now = time.time_ns()
        for path in workspace.rglob("*"):
            os.utime(path, ns=(now, now))
        workspace.rename(out)
        sync_path(out.parent)
        # Only now: a run that could not be renamed must still be able to resume with the same noise.
        forget_secrets(out)
    except OSError as error:
        raise cannot_write(out, error) from None


def files_of_release(folder: Path) -> dict[str, Path]:
    """Return the files of a run folder by name that its digests cover: what the model is made of, and its settings.

    Left out are the model card, which people complete, the two sides of a locally private run, which are given to
    others, what only the owner keeps, and ledgers, which are recorded by their spends.
    """
    names = ("model.safetensors", "encoder.json", "settings.toml", "federation.toml")
    paths = [*(folder / name for name in names), *(folder / "tokenizer").rglob("*")]
    return {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}


def guarantee_with_digests(guarantee: Guarantee, folder: Path, ledger: Statement) -> dict[str, Any]:
    """Return a guarantee as plain values for a file next to the weights in `folder`, with their digests.

    `ledger` holds what was spent when the weights were saved; it may grow later.
    """
    weights = [path for pattern in ("*.safetensors", "*model*.bin") for path in folder.glob(pattern)]
    spent = {LEDGER: (ledger.spends, ledger.check)}
    return with_digests(guarantee.as_dict(), {path.name: path for path in weights}, spent)


def ledgers_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the number of spends and the last check of every ledger of a run, by its name in the folder."""
    from discreet.accounting.ledger import Ledger

    found = {}
    for path in sorted((*folder.glob(LEDGER), *folder.glob(f"client-*/{LEDGER}"), *folder.glob(f"server/{LEDGER}"))):
        statement = Ledger.read(path)
        found[path.relative_to(folder).as_posix()] = (statement.spends, statement.check)
    return found


def settings_text(settings: RunSettings) -> str:
    """Return the settings of a run as TOML."""
    values = as_dict(dataclasses.replace(settings, protect=None))
    for key in ("seed", "task", "classes"):  # they are settings of the whole run, outside the table
        values["data"].pop(key, None)
    return as_toml(values | ({} if settings.protect is None else {"protect": settings.protect.as_table()}))


def read_settings(path: Path) -> RunSettings:
    """Return the settings of a run from its TOML file; another format and unknown keys are rejected."""
    values = read_values(path)
    if (found := values.get("format")) != _FORMAT:
        raise ModelError(
            f"Expected a run of format {_FORMAT} in {str(path.parent)!r}, got {shown(found)}. Another version wrote "
            "it; read it with that version, or train it again."
        )
    table = values.pop("protect", None)
    protect = None if table is None else protection_from_table(table)
    return dataclasses.replace(parse(RunSettings, values, path.name), protect=protect)


def encoder_config(model: TextModel) -> str:
    """Return the kind and the configuration of a model's network as JSON."""
    if isinstance(model, LanguageModel):
        return json.dumps({"kind": CAUSAL, "config": model.network.config.to_dict()})
    config = model.encoder.config
    if isinstance(model.encoder, BiLSTM):
        return json.dumps({"kind": BILSTM, "config": vars(config)})
    return json.dumps({"kind": "transformers", "config": config.to_dict()})  # type: ignore[operator,union-attr]


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a finished run."""
    return all((folder / name).is_file() for name in ("settings.toml", "encoder.json", "model.safetensors"))


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics of a finished run; a folder that differs from the digests in them is rejected."""
    path = folder / "metrics.json"
    metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    check_digests(metrics, path)
    return metrics


def load_run(folder: Path | str, device: torch.device | str = "cpu") -> Run:
    """Return a finished run from its folder; one whose files were edited is rejected.

    Args:
        folder: The folder of the run.
        device: Where to put the model.

    Guarantee: that of the run, unchanged; reading is post-processing.

    ```python
    run = load_run("runs/notes")
    run.model, run.guarantee
    ```
    """
    folder = Path(folder)
    if not (folder / "settings.toml").exists():
        unfinished = folder.with_name(folder.name + UNFINISHED)
        resume = "It is unfinished: resume it with the command that started it."
        hint = resume if unfinished.exists() else "Check the path."
        raise ModelError(f"Expected a run folder at {str(folder)!r}. {hint}")
    forget_secrets(folder)  # a crash at the very end may have left them
    settings = read_settings(folder / "settings.toml")
    try:
        config = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
        tensors, _ = load_tensors(folder / "model.safetensors")
        metrics = read_metrics(folder)
        module = fresh_module(config, tensors)
        tokenizer = load_tokenizer(folder / "tokenizer")
        model = _assembled(settings, module, tokenizer, metrics[DIGESTS][FILES]["model.safetensors"])
        model.load_weights(tensors)
    except (OSError, ValueError, KeyError, RuntimeError, *WRONG_KIND) as error:
        raise ModelError(
            f"Expected a complete run folder at {str(folder)!r}. {first_line(error)} Train it again."
        ) from None
    return Run(model.to(device).eval(), settings, metrics)


def _assembled(settings: RunSettings, module: torch.nn.Module, tokenizer: Any, fingerprint: str) -> TextModel:
    """Return the model of a run with fresh weights, into which its own can be loaded."""
    rng = Rng(settings.seed)
    if settings.task.is_language:
        return LanguageModel.from_transformers(module, tokenizer, settings.model, rng=rng, fingerprint=fingerprint)
    encoder = assemble(settings.model.encoder, module, tokenizer, fingerprint)
    model = Classifier(encoder, settings.model, settings, rng)
    if settings.protect is not None:  # it may add modules between encoder and head
        settings.protect.shape(model)
    return model
