"""The model card: what a model is for, what it can do and what it guarantees, without a word of its training text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.core.guarantee import Guarantee
from discreet.models.classifier import Classifier
from discreet.training.checkpoint import trained

if TYPE_CHECKING:
    from discreet.training.run_folder import RunSettings


def model_card(model: Classifier, settings: RunSettings, metrics: dict[str, Any], guarantee: Guarantee | None) -> str:
    """Return a model card in Markdown."""
    chosen = settings.model
    count = sum(p.numel() for p in trained(model).values())
    what = f"{len(model.label_names)} classes" if model.task == "classification" else "a score"
    found = metrics.get("utility") or {}
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in found.items())
    scores = f"| metric | value |\n|---|---|\n{rows}" if rows else "Not measured: no rows were held out."
    promise = (
        guarantee.sentence()
        if guarantee is not None
        else "No privacy guarantee: this model was trained without protection and may reveal its training text."
    )
    return f"""# A text classifier

It sorts {"pairs of texts" if settings.pairs else "texts"} into {what}.

| part | choice |
|---|---|
| encoder | {chosen.encoder}, pooled by `{chosen.pooling}` |
| head | {chosen.head} |
| trained | {chosen.train}, {count:,} weights |
| longest text | {model.max_length} tokens |
| epochs, batch | {settings.train.epochs:g}, {settings.train.batch_size} |
| seed | {settings.seed} |

## Utility on {"held-out text" if metrics.get("evaluated_on") != "train" else "the training text itself"}

{scores}

## Privacy

{promise}

## Use

```
discreet predict THIS_FOLDER texts.txt
```
"""
