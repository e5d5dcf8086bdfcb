"""What kind of words a text holds: names, dates, numbers, function words and others; and how many of each were read.

An overlap metric counts "the" as much as a surname. These metrics count each category apart. Categories come from the
true text, by the following rules in this order, and from no list of names:

- date: 2021-06-24, 24/06/2021, 24 June 2021, June 24, 2021, with short months too; also a month or weekday alone.
- telephone number: 7 or more digits in at least two groups, separated by spaces, hyphens, dots or parentheses.
- record number: 5 or more digits in one group. Number: every other word with a digit in it.
- function word: a word of a fixed English list (articles, pronouns, prepositions, conjunctions, auxiliary verbs).
- name: a capitalized word that does not begin a sentence, or that begins one and is followed by another capitalized
  word. Words in capitals only ("MRI") are not names, nor are words that the text also has in lower case.
- word: all others.

The rule for names also takes eponyms ("Crohn's") and brands for names, and it needs text with upper and lower case:
in a text without upper case no name is found, and the text does not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Category(Enum):
    """The kind of an item in a text."""

    NAME = "name"
    DATE = "date"
    RECORD = "record number"
    TELEPHONE = "telephone number"
    NUMBER = "other number"
    FUNCTION = "function word"
    WORD = "other word"


NUMBERS = frozenset({Category.RECORD, Category.TELEPHONE, Category.NUMBER})

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)"
_DATE = re.compile(
    rf"\b(?:\d{{4}}-\d\d?-\d\d?|\d\d?[/.]\d\d?[/.]\d{{2,4}}|\d\d?(?:st|nd|rd|th)? (?:of )?{_MONTH}\b\.?(?:,? \d{{4}})?|"
    rf"{_MONTH} \d\d?(?:st|nd|rd|th)?(?:, \d{{4}}|\b)|{_MONTH} \d{{4}}|{_MONTH}|{_DAY})\b"
)
_TELEPHONE = re.compile(r"(?<![\w-])\+?\(?\d+\)?(?:[ .()-]{1,2}\d+)+(?![\w-])")
_NUMBER = re.compile(r"\w*\d\w*(?:[.,]\d+)*")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_ITEM = re.compile(rf"(?P<number>{_NUMBER.pattern})|(?P<word>{_WORD.pattern})")
_FRAGMENT = re.compile(r"[^\W_]+")
_LONG_NUMBER, _TELEPHONE_DIGITS = 5, 7
_TITLES = frozenset({"dr", "mr", "mrs", "ms", "prof", "st"})
_ENGLISH = """a an the this that these those some any no every each either neither both all another other such one
i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours
ourselves they them their theirs themselves who whom whose which what there here
of in on at by for with about against between into through during before after above below to from up down out off
over under again further since until upon within without toward towards across along among around behind beside
besides beyond despite except near per than via onto like
and or but nor so yet if because although though while whereas unless as whether when where why how that
is am are was were be been being have has had having do does did doing done will would shall should can could may
might must ought not n't 's 'll 're 've 'd 'm
very too also just only then once more most less least much many few own same now ever never"""
FUNCTION_WORDS = frozenset(_ENGLISH.split())


@dataclass(frozen=True)
class Item:
    """An item of a text: its category and its spelling."""

    category: Category
    text: str


def items(text: str) -> list[Item]:
    """Return the items of a text in their order.

    >>> [(item.text, item.category.value) for item in items("Seen 24 June 2021: Ana Ruiz, 555-010-0199, for gout.")]
    [('Seen', 'other word'), ('24 June 2021', 'date'), ('Ana', 'name'), ('Ruiz', 'name'), \
('555-010-0199', 'telephone number'), ('for', 'function word'), ('gout', 'other word')]
    """
    found = [(match.start(), Item(Category.DATE, match.group())) for match in _DATE.finditer(text)]
    rest = _DATE.sub(lambda match: " " * len(match.group()), text)
    for match in _TELEPHONE.finditer(rest):
        if sum(character.isdigit() for character in match.group()) >= _TELEPHONE_DIGITS:
            found.append((match.start(), Item(Category.TELEPHONE, match.group())))
            rest = rest[: match.start()] + " " * len(match.group()) + rest[match.end() :]
    found += _words_and_numbers(text, rest)
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


def _words_and_numbers(text: str, rest: str) -> list[tuple[int, Item]]:
    """Return the items of a text outside its dates and telephone numbers, which are blank in `rest`."""
    matches = list(_ITEM.finditer(rest))
    lower = {match.group() for match in matches if match.group().islower()}
    result: list[tuple[int, Item]] = []
    for place, match in enumerate(matches):
        word = match.group()
        if match["number"] is not None:
            long = word.isdigit() and len(word) >= _LONG_NUMBER
            result.append((match.start(), Item(Category.RECORD if long else Category.NUMBER, word)))
            continue
        category = Category.WORD
        if word.lower() in FUNCTION_WORDS:
            category = Category.FUNCTION
        elif _is_capitalized(word) and word.lower() not in lower:
            follower = matches[place + 1] if place + 1 < len(matches) else None
            adjacent = follower is not None and text[match.end() : follower.start()] == " "
            follows = adjacent and follower is not None and _is_capitalized(follower.group())
            function = follower is not None and follower.group().lower() in FUNCTION_WORDS
            if not _begins_sentence(text, match.start()) or (follows and not function):
                category = Category.NAME
        result.append((match.start(), Item(category, word)))
    return result


def _is_capitalized(word: str) -> bool:
    return word[:1].isupper() and (len(word) == 1 or not word.isupper()) and word.lower() not in _TITLES


def _begins_sentence(text: str, start: int) -> bool:
    """Return whether a word at this place begins a sentence; a title or an initial before it does not end one."""
    before = text[:start].rstrip(" \t\n\"'([«“‘")
    if not before:
        return True
    if before[-1] not in ".!?":
        return False
    last = _WORD.findall(before[-12:])
    abbreviated = bool(last) and before.endswith(last[-1] + ".")
    return not (abbreviated and (last[-1].lower() in _TITLES or (len(last[-1]) == 1 and last[-1].isupper())))


def fragments(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, in lower case and without accents, as tokenizers spell them.

    >>> fragments("Zoë, 616-555-0171")
    ['zoe', '616', '555', '0171']
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return _FRAGMENT.findall(plain)


def share_read(guess: str, truth: str, categories: frozenset[Category]) -> float:
    """Return the share of the truth's items of some categories that the guess contains, or NaN if it has none.

    Items are compared as fragments, each counted as often as it occurs; their order does not count.

    >>> share_read("ana was seen on 24 june", "Ana Ruiz came on 24 June 2021.", frozenset({Category.DATE}))
    0.6666666666666666
    """
    wanted = Counter(part for item in items(truth) if item.category in categories for part in fragments(item.text))
    if not wanted:
        return float("nan")
    return sum((wanted & Counter(fragments(guess))).values()) / wanted.total()


def table_of_items(sampled: Sequence[str], private: Sequence[str], unseen: Sequence[str]) -> list[dict[str, object]]:
    """Return by category how many different items sampled texts hold, and how many of them are in private text only.

    `private` is the training text and `unseen` is text of the same kind that was not trained on: an item that both have
    may come from either. An item of free text is a sequence of eight words.
    """
    produced, known, elsewhere = (_by_category(texts) for texts in (sampled, private, unseen))
    return [
        {
            "category": label,
            "sampled": len(produced[label]),
            "in_training_text": len(produced[label] & known[label]),
            "in_training_text_only": len((produced[label] & known[label]) - elsewhere[label]),
            "in_unseen_text_only": len((produced[label] & elsewhere[label]) - known[label]),
            "in_neither": len(produced[label] - known[label] - elsewhere[label]),
        }
        for label in (*_TABLE.values(), FREE_TEXT)
    ]


_TABLE = {
    Category.NAME: "names",
    Category.DATE: "dates",
    Category.RECORD: "record numbers",
    Category.TELEPHONE: "telephone numbers",
}
FREE_TEXT = "8 words in a row"  # free text
_FREE_WORDS = 8


def _by_category(texts: Sequence[str]) -> dict[str, set[str]]:
    """Return the different items of texts by the label of their category; a name is a first name and a surname."""
    groups: dict[str, set[str]] = {label: set() for label in (*_TABLE.values(), FREE_TEXT)}
    for text in texts:
        previous: Item | None = None
        for item in items(text):
            spelling = item.text
            if item.category is Category.NAME:
                pair = previous is not None and previous.category is Category.NAME
                spelling = f"{previous.text} {item.text}" if pair and previous is not None else ""
            if spelling and item.category in _TABLE:
                groups[_TABLE[item.category]].add(" ".join(fragments(spelling)))
            previous = item
        words = fragments(text)
        groups[FREE_TEXT].update(" ".join(words[i : i + _FREE_WORDS]) for i in range(len(words) - _FREE_WORDS + 1))
    return groups
