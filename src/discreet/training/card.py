"""The model card: what a model is for, what it can do and what it guarantees, without a word of its training text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.core.guarantee import Guarantee, in_digits
from discreet.metrics.utility import in_sentences
from discreet.models.classifier import Classifier
from discreet.protections.base import in_words
from discreet.training.checkpoint import trained

if TYPE_CHECKING:
    from discreet.training.run_folder import RunSettings


def model_card(model: Classifier, settings: RunSettings, metrics: dict[str, Any], guarantee: Guarantee | None) -> str:
    """Return a model card in Markdown."""
    chosen = settings.model
    count = sum(p.numel() for p in trained(model).values())
    what = f"{len(model.label_names)} classes: {', '.join(model.label_names)}"
    found = metrics.get("utility") or {}
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in found.items())
    scores = f"| metric | value |\n|---|---|\n{rows}" if rows else "Not measured: no rows were held out."
    if metrics.get("quality"):
        scores += "\n\n" + " ".join(in_sentences(metrics["quality"]))
    promise = (
        guarantee.sentence()
        if guarantee is not None
        else "No privacy guarantee: this model was trained without protection and may reveal its training text."
    )
    title = "A text classifier" if model.task == "classification" else "A scorer of texts"
    rate = "usual" if settings.train.learning_rate is None else f"{settings.train.learning_rate:g}"
    subject = "pairs of texts" if settings.pairs else "texts"
    purpose = f"It sorts {subject} into {what}." if model.task == "classification" else f"It gives {subject} a score."
    return f"""# {title}

{purpose}

| part | choice |
|---|---|
| encoder | {chosen.encoder}, pooled by `{chosen.pooling}` |
| head | {chosen.head} |
| trained | {chosen.train}, {count:,} weights |
| longest text | {model.max_length} tokens |
| epochs, batch, rate | {settings.train.epochs:g}, {settings.train.batch_size}, {rate} |
| seed | {settings.seed} |

## Utility on {"held-out text" if metrics.get("evaluated_on") != "train" else "the training text itself"}

{scores}

## Privacy

{promise}
{protection(metrics, guarantee)}
## Use

```
discreet predict THIS_FOLDER texts.txt
```
"""


def protection(metrics: dict[str, Any], guarantee: Guarantee | None) -> str:
    """Return how a protected run was protected, and its epsilon under each adjacency."""
    if "protection" not in metrics or guarantee is None:
        return ""
    kind = "Epsilon" if guarantee.certified else "Estimates of epsilon"
    chosen = in_words(metrics["protection"])
    columns = ", ".join(
        f"{name} {'not defined' if value is None else in_digits(value)}"
        for name, value in metrics["epsilon_by_adjacency"].items()
    )
    return f"\nProtection: {chosen}; {metrics['steps']} steps. {kind} at the same delta: {columns}.\n"
