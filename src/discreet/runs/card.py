"""Model cards, and the front matter of model and data cards, which the Hugging Face hub reads: YAML of JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from discreet.core.guarantee import Guarantee, in_digits
from discreet.metrics.utility import in_sentences

if TYPE_CHECKING:
    from discreet.models.base import TextModel
    from discreet.runs.folder import RunSettings

STATED = ("epsilon", "delta", "unit", "adjacency", "accountant", "certified", "caveats")  # in a card
_PIPELINES = {"lm": "text-generation", "text": None}


def front_matter(task: str, guarantee: Guarantee | None, library: str | None = "discreet") -> str:
    """Return the front matter of a card; the task "text" is that of a data card.

    >>> print(front_matter("classification", None))
    ---
    library_name: "discreet"
    pipeline_tag: "text-classification"
    tags: ["discreet"]
    ---
    """
    return in_yaml(card_values(task, guarantee, library))


def card_values(task: str, guarantee: Guarantee | None, library: str | None = "discreet") -> dict[str, Any]:
    """Return the values of the front matter by name."""
    pipeline = _PIPELINES.get(task, "text-classification")
    values: dict[str, Any] = {} if library is None else {"library_name": library}
    values |= {} if pipeline is None else {"pipeline_tag": pipeline}
    values["tags"] = ["discreet"]
    if guarantee is not None and guarantee.exists:
        stated = guarantee.as_dict()
        values["tags"] += ["differential-privacy", "differential_privacy"]
        values["differential_privacy"] = {name: stated[name] for name in STATED}
    return values


def in_yaml(values: Mapping[str, Any]) -> str:
    """Return front matter with these values."""
    return "---\n" + "".join(f"{name}: {_value(value)}\n" for name, value in values.items()) + "---"


def _value(value: Any) -> str:
    """Return a value as JSON that is YAML too, where 1e-05 would be a text and 1.0e-05 is a number.

    >>> _value({"delta": 1e-05, "caveats": ["1e-05"]})
    '{"delta": 1.0e-05, "caveats": ["1e-05"]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)}: {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


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
    rate = "default" if settings.train.learning_rate is None else f"{settings.train.learning_rate:g}"
    library = "discreet" if opened_by is None else "transformers"
    return f"""{front_matter(model.task, guarantee, library)}
# {title}

{purpose}

| part | choice |
|---|---|
{parts}
| trained | {settings.model.train}, {count:,} weights |
| longest text | {model.max_length} tokens |
| epochs, batch, rate | {settings.train.epochs:g}, {settings.train.batch_size}, {rate} |
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
    if model.task == "lm":
        parts, command = f"| language model | {about.encoder} |", "discreet generate THIS_FOLDER"
        return "A language model", "It continues texts.", parts, command
    parts = f"| encoder | {about.encoder}, pooled by `{about.pooling}` |\n| head | {about.head} |"
    subject, command = "pairs of texts" if settings.pairs else "texts", "discreet predict THIS_FOLDER texts.txt"
    if model.task != "classification":
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
