"""Write public phrases that say little of a sentiment, as partners for TextHide.

    python -m reproductions.texthide.neutral_phrases SST2 --sentences sentences.txt --labelled reviews.jsonl --out \
        phrases.txt

Spans of public sentences, as long as the private ones are, are scored by least squares on public labels over a frozen
encoder; the third nearest to the middle is kept, without what occurs in the private corpus. The sentences are one a
line, the labelled reviews lines of JSON with `text` and `label`. Of the private corpus only its lengths and the overlap
are used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, without_overlap
from discreet.data.sources import load
from discreet.models.build import tokenise
from discreet.models.classifier import Classifier, ModelSettings
from discreet.training.evaluation import represent


def spans(sentences: Sequence[str], lengths: Sequence[int], rng: Rng) -> list[str]:
    """Return one span of words of each sentence, each span once, with lengths drawn from those given."""
    source = rng.numpy("spans")
    made = []
    for sentence in sentences:
        words = sentence.split()
        size = min(len(words), lengths[source.integers(len(lengths))])
        start = source.integers(0, len(words) - size + 1)
        made.append(" ".join(words[start : start + size]).lower())
    return list(dict.fromkeys(made))


def middle(scores: np.ndarray, share: float) -> np.ndarray:
    """Return the places of the scores nearest to their median, in order."""
    near = np.argsort(np.abs(scores - np.median(scores)), kind="stable")
    return np.sort(near[: int(len(scores) * share)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the private corpus")
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1 / 3)
    parser.add_argument("--rows", type=int, default=20_000, help="labelled reviews at most")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    rng = Rng(0)
    private = load(asked.data)
    sentences = [line for line in asked.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    lengths = [len(text.split()) for text in private.split("train").texts]
    public = without_overlap(Corpus("phrases", tuple(spans(sentences, lengths, rng.fork("spans")))), private)
    lines = asked.labelled.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(lines[i]) for i in rng.fork("rows").permutation(len(lines))[: asked.rows]]
    settings = ModelSettings(encoder=asked.model, head="linear")
    model = Classifier.build(private, settings, rng=rng).to(find_device(asked.device)).eval()

    def vectors(texts: Sequence[str]) -> np.ndarray:
        read = tokenise(Corpus("texts", tuple(texts)), model.tokenizer, 64, model.device)
        found: np.ndarray = represent(model, read).cpu().numpy()
        return found

    known = vectors([row["text"] for row in rows])
    labels = np.array([row["label"] for row in rows], dtype=np.float64)
    centre = known.mean(axis=0)
    spread = (known - centre).T @ (known - centre) + len(known) * 1e-4 * np.eye(known.shape[1])
    direction = np.linalg.solve(spread, (known - centre).T @ (labels - labels.mean()))
    kept = middle((vectors(public.texts) - centre) @ direction, asked.share)
    asked.out.write_text("".join(f"{public.texts[i]}\n" for i in kept), encoding="utf-8")
    print(f"{len(kept)} of {len(public)} phrases; {public.remarks[-1]}")


if __name__ == "__main__":
    main()
