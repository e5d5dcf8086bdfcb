"""One attack of the page: release a sentence under a protection, attack it, and compare the guess with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from discreet.accounting.risk import most_identified, most_named
from discreet.attacks.base import Attack
from discreet.core.errors import DataError, Message, UnsupportedError, invalid, one_of, setting
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import check_texts
from discreet.experiment.attack.request import DEFAULT_METRICS, AttackRequest, AttackResult, Example
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scoring import metrics_for, tokenizer_spelling
from discreet.explorer.menu import DELTA, LONGEST, NONE, Menu, checked, started, why_not
from discreet.explorer.page_data import PageData
from discreet.explorer.typed import TypedScene
from discreet.metrics.table import METRICS, label_of
from discreet.models.encoder import unknown_share
from discreet.releases.description import GRADIENT, REPRESENTATION, TEXT, describe_knowledge, describe_release
from discreet.releases.protected import protection_of
from discreet.report.reading import Piece, bare, pieces

CANDIDATES = 64
OPEN = "the release was not protected"
_ONE_OF = {"lengths": "length", "labels": "label"}  # singular of the facts the attacker knows


@dataclass(frozen=True)
class Question:
    """A request of the page: a sentence, a protection with its slider values, and an attack.

    `setting` is the index of a study's setting that supplies the other settings of the protection; `label` is the
    training label of the sentence.
    """

    sentence: str = field(repr=False)
    protection: str = NONE
    attack: str = "dager"
    dials: dict[str, float] = field(default_factory=dict)
    label: str | None = None
    setting: int | None = None

    def __post_init__(self) -> None:
        """Reject an empty or too long sentence; the message does not repeat it."""
        if not self.sentence.strip():
            raise DataError("Expected a sentence, got none. Type one, or choose an example.")
        if len(self.sentence) > LONGEST:
            raise DataError(
                f"Expected a sentence of at most {LONGEST} characters, got {len(self.sentence)}. Shorten it."
            )
        check_texts([self.sentence], "the page", "sentence")


def read(
    question: Question,
    data: PageData,
    menu: Menu,
    *,
    seconds: float,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Attack a sentence and return the guess, the leakage and the guarantee of the release.

    The noise is fresh and secret, from the operating system, for every attack; 1-of-n simulates its many releases.

    Guarantee: none for the returned values, which hold the sentence; they include that of the release.
    """
    start = time.monotonic()
    one_of("attack", question.attack, menu.attacks)
    one_of("protection", question.protection, [NONE, *menu.protections])
    attack = menu.attacks[question.attack]
    kind = attack.sees.kind
    say("Preparing the protection")
    values = _values(question, data, menu)
    size = menu.mix(question.protection, values)
    protect = None
    if question.protection != NONE:
        public = data.public(kind, values.get("public"))
        protect = protection_of(
            question.protection, data.scene(kind).model, values, delta=DELTA, batch_size=size, public=public
        )
    reason = why_not(menu, question.attack, protect, head=data.scene(kind).model.settings.train == "head")
    if reason is not None:
        raise UnsupportedError(
            f"Expected an attack that fits the release. {reason} Choose another attack or protection."
        )
    if protect is None or protect.place != REPRESENTATION:
        size = 1  # no mixing
    scene = data.typed(question.sentence.strip(), question.label, kind)
    identifies = attack.identifies
    # a small corpus has fewer candidates
    count = min(CANDIDATES, max(2, scene.count_distinct())) if identifies else CANDIDATES
    say(f"Comparing {count} sentences; the first run takes longest" if identifies else "Releasing and attacking")
    request = AttackRequest(
        attack,
        protect,
        question.attack,
        examples=size,
        batch_size=size,
        seconds=seconds,
        delta=DELTA,
        candidates=count if identifies else None,
    )
    result = attack_once(request, scene)
    example = None if identifies else closest_example(result, attack, scene, kind)
    share = unknown_share(scene.model.tokenizer, scene.typed.texts)
    return {
        "attack": question.attack,
        "protection": question.protection,
        "dials": dict(question.dials),
        **_leakage(result, example, attack),
        **_texts(example, attack, kind, size, _remarks(result, protect, seconds, share), scene.model.tokenizer),
        "unknown": share,
        "guarantee": _guarantee(result, protect),
        "bound": bound(protect, result, scene),
        "candidates": count,
        "alike": alike(result),
        "release": _release(result),
        "seconds": time.monotonic() - start,
    }


def _values(question: Question, data: PageData, menu: Menu) -> dict[str, Any]:
    before: Mapping[str, Any] | None = None
    if question.setting is not None:
        if not 0 <= question.setting < len(data.settings):
            rule = f"in [0, {len(data.settings)})"
            raise invalid("setting", question.setting, rule, "It is an index into the settings of the study.")
        chosen = data.settings[question.setting]
        before = chosen.values if chosen.protection == question.protection else None
    dials = checked(menu.sliders(question.protection), question.dials, before or {})
    if question.protection != NONE and before is None:
        start = started(menu.sliders(question.protection))
        alone = {dial.name for dial in menu.sliders(question.protection) if dial.alone}
        dials = {**{k: v for k, v in start.items() if k not in alone or not alone & set(dials)}, **dials}
    settings: dict[str, Any] = menu.values(question.protection, dials, before)
    return settings


def closest_example(result: AttackResult, attack: Attack, scene: TypedScene, kind: str) -> Example:
    """Return the typed sentence with the guess that is closest to it.

    If sentences are mixed, there is a guess for each mixture, and the sentence is in several of them. The truth is the
    typed sentence; scores compare with its decoded tokens, where unknown tokens count as not recovered.
    """
    typed = scene.typed.texts[0]
    if not attack.is_ordered and kind == GRADIENT:
        batch = result.examples[0]  # the words of all texts in the batch, unordered
        return replace(batch, truth=typed, spelling=batch.scored)
    truth = tokenizer_spelling(scene.model, typed)
    if not attack.is_ordered:
        truth = " ".join(dict.fromkeys(truth.split()))
    main = _main(attack, truth)
    guesses = [one.guess for one in result.examples] or [""]
    guess = max(guesses, key=lambda text: METRICS[main].score(text, truth))
    scores = {name: METRICS[name].score(guess, truth) for name in metrics_for(attack, DEFAULT_METRICS)}
    return Example(typed, guess, scores, spelling=truth)


def _main(attack: Attack, truth: str) -> str:
    """Return the main metric of the page: ROUGE-L for attacks that recover words in order.

    ROUGE counts only the letters a-z and digits, so it is not used for texts with other characters: it would ignore
    them.
    """
    names = metrics_for(attack, DEFAULT_METRICS)
    ascii_words = truth.isascii() and any(c.isalnum() for c in truth)
    order = ("rouge_l",) if ascii_words else ("lcs_over_longer", "bag_recall")
    return next((name for name in order if name in names), names[0])


def _leakage(result: AttackResult, example: Example | None, attack: Attack) -> dict[str, Any]:
    if example is None:
        one = result.leakages[0]
        words = label_of(one.metric)
        main = {"words": words, "value": one.value, "low": one.low, "high": one.high, "n": one.n, "chance": one.chance}
        return {"leakage": main, "figures": []}
    main_name = _main(attack, example.scored)
    figures = [{"words": label_of(name), "value": value} for name, value in example.scores.items()]
    # a single sentence has no chance level, which compares with the other texts of a release
    main = {"words": label_of(main_name), "value": example.scores[main_name], "n": 1, "chance": None}
    return {"leakage": main, "figures": figures}


def unknown_words(share: float) -> str:
    """Return a remark on the share of a sentence's tokens that the model does not know.

    >>> unknown_words(0.0), unknown_words(1.0)[:44]
    ('', 'The model knows none of the tokens of this s')
    """
    if not share:
        return ""
    if share == 1:
        return (
            "The model knows none of the tokens of this sentence: it sees [UNK] for each, which no attack can recover."
        )
    percent = "nearly all" if share > 0.99 else "less than 1%" if share < 0.01 else f"{share:.0%}"
    return f"The model does not know {percent} of the tokens: it sees [UNK] there, which no attack can recover."


def _remarks(result: AttackResult, protect: Any, seconds: float, share: float) -> list[str]:
    """Return remarks on unknown tokens, a rewritten text and a reached time limit."""
    remarks = [unknown_words(share)] if share else []
    if protect is not None and protect.place == TEXT:
        remarks.append("The sentence was rewritten before the release; the guess is of the rewritten one.")
    if result.stopped:
        remarks.append(
            Message(
                f"Stopped by the time limit of {seconds:g} s, perhaps too early. Start the explorer with a longer "
                f"limit ({setting('seconds')})."
            )
        )
    return remarks


def _texts(
    example: Example | None, attack: Attack, kind: str, size: int, remarks: list[str], tokenizer: Any
) -> dict[str, Any]:
    if example is None:
        notes = [*remarks, "This attack identifies a sentence among candidates; it recovers no text."]
        return {"truth": None, "guess": None, "note": " ".join(notes)}
    notes, marked = list(remarks), pieces
    if not attack.is_ordered:
        notes.append("Words and word pieces, unordered.")
        marked = unordered
    if size > 1 and not attack.is_ordered and kind == GRADIENT:
        notes.append(f"They belong to all {size} sentences in the release.")
    elif size > 1:
        notes.append(f"Of the {size} recovered texts, the one closest to yours.")
    truth = marked(example.truth, example.guess)
    if not attack.is_ordered and kind == GRADIENT:
        # the guess is a set of tokens: a word is recovered if all its tokens are
        guessed = set(example.guess.split())
        truth = [replace(piece, right=guessed.issuperset(tokenizer.tokenize(piece.text))) for piece in truth]
    return {
        "truth": [asdict(piece) for piece in truth],
        "guess": [asdict(piece) for piece in marked(example.guess, example.truth)],
        "note": " ".join(notes),
    }


def unordered(text: str, other: str) -> list[Piece]:
    """Return a text word by word; a word is marked if it occurs anywhere in the other text.

    >>> [(p.text, p.right) for p in unordered("red cat", "Cat, blue")]
    [('red', False), (' cat', True)]
    """
    words = {bare(word) for word in other.split()}
    return [Piece(f" {word}" if place else word, bare(word) in words) for place, word in enumerate(text.split())]


def _guarantee(result: AttackResult, protect: Any) -> dict[str, Any]:
    guarantee = result.guarantee
    columns = {name: value for name, value in result.epsilon_by_adjacency.items() if value is not None}
    if guarantee is None:
        sentence = f"No guarantee: {OPEN}." if protect is None else "No guarantee is known for this release."
        return {"epsilon": None, "certified": False, "reason": OPEN, "sentence": sentence, "columns": columns}
    return {**guarantee.as_dict(), "sentence": guarantee.sentence(assumptions=False), "columns": columns}


def bound(protect: Any, result: AttackResult, scene: TypedScene) -> float | None:
    """Return a bound on how often any attack identifies the right one of 64 candidates from such a release.

    None without a proof: if there is no protection, or if the guarantee is an estimate.
    """
    if result.bound is not None:
        return None if protect is None else result.bound
    guarantee = result.guarantee
    if protect is None or guarantee is None or not guarantee.exists or not guarantee.certified:
        return None
    bounds = [most_named(guarantee.epsilon, guarantee.delta, CANDIDATES)]
    event = _event(protect, scene)
    for adjacency in Adjacency if event is not None else ():
        # each adjacency gives a valid bound, so the smallest holds
        with suppress(UnsupportedError):
            bounds.append(most_identified(event, CANDIDATES, adjacency))
    return min(bounds)


def alike(result: AttackResult) -> str:
    """Return what all candidates of the bound share: the facts the attacker knows besides the release."""
    known = () if result.release.get("simulated") else result.release.get("known", ())
    return " and ".join(_ONE_OF[word] for word in known)


def _event(protect: Any, scene: TypedScene) -> Any:
    """Return the privacy event of one release, or None if it depends on the text."""
    if protect.place == GRADIENT:
        return protect.event
    if protect.place == REPRESENTATION and protect.stored and protect.mixes == 1:
        return protect.once(np.zeros(1, dtype=np.int64), scene.model.width, scene.model.classes, Rng.secret()).event
    return None


def _release(result: AttackResult) -> str:
    """Describe the release and the knowledge of the attacker."""
    facts = result.release
    size = int(facts.get("batch_size", 1))
    texts = "your sentence" if size == 1 else f"{size} sentences, yours among them"
    if facts.get("simulated"):
        texts = f"one of {facts['candidates']} sentences, yours among them"
    return f"{describe_release(facts, texts=texts)}. {describe_knowledge(facts)}"
