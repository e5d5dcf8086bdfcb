"""One reading: a sentence is released under a protection, attacked, and what came back is set beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from discreet.accounting.risk import most_identified, most_named
from discreet.attacks.base import Attack
from discreet.core.errors import DataError, Message, UnsupportedError, invalid, one_of, setting
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import check_texts
from discreet.experiment.attack import (
    DEFAULT_METRICS,
    AttackRequest,
    AttackResult,
    Example,
    metrics_for,
    run_attack,
    tokenizer_spelling,
)
from discreet.explorer.menu import DELTA, LONGEST, NONE, Menu, checked, misfit, started
from discreet.explorer.stage import Stage
from discreet.explorer.typed import TypedScene
from discreet.metrics.table import METRICS, label_of
from discreet.models.encoder import unknown_share
from discreet.releases.description import GRADIENT, REPRESENTATION, TEXT, describe_knowledge, describe_release
from discreet.releases.protected import protection_of
from discreet.report.reading import Piece, bare, pieces

CANDIDATES = 64
OPEN = "the release was not protected"
_ONE_OF = {"lengths": "length", "labels": "label"}  # what is known of all texts of a release, said of one


@dataclass(frozen=True)
class Question:
    """What the page asks: a sentence, a protection with its dials, an attack.

    `setting` is the number of a study's setting, whose other values are then used; `label` is what the client would
    train the sentence towards.
    """

    sentence: str = field(repr=False)
    protection: str = NONE
    attack: str = "dager"
    dials: dict[str, float] = field(default_factory=dict)
    label: str | None = None
    setting: int | None = None

    def __post_init__(self) -> None:
        """Refuse a sentence that is none, and say nothing of what it holds."""
        if not self.sentence.strip():
            raise DataError("Expected a sentence, found none. Type one, or choose an example.")
        if len(self.sentence) > LONGEST:
            raise DataError(
                f"Expected a sentence of at most {LONGEST} characters, found {len(self.sentence)}. Shorten it."
            )
        check_texts([self.sentence], "the page", "sentence")


def read(
    question: Question,
    stage: Stage,
    menu: Menu,
    *,
    seconds: float,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Return what an attacker read of a sentence, how much that is, and what is guaranteed for this one release.

    The noise is fresh and secret, from the operating system, at every reading; 1-of-n simulates its many releases.

    Guarantee: none for the answer, which holds the sentence; that of the one release is in it.
    """
    began = time.monotonic()
    one_of("attack", question.attack, menu.attacks)
    one_of("protection", question.protection, [NONE, *menu.protections])
    attack = menu.attacks[question.attack]
    kind = attack.sees.kind
    say("Preparing the protection")
    values = _values(question, stage, menu)
    size = menu.mix(question.protection, values)
    protect = None
    if question.protection != NONE:
        public = stage.public(kind, values.get("public"))
        protect = protection_of(
            question.protection, stage.scene(kind).model, values, delta=DELTA, batch_size=size, public=public
        )
    said = misfit(menu, question.attack, protect, head=stage.scene(kind).model.settings.train == "head")
    if said is not None:
        raise UnsupportedError(f"Expected an attack that fits the release. {said} Choose another attack or protection.")
    if protect is None or protect.place != REPRESENTATION:
        size = 1  # nothing is mixed
    scene = stage.typed(question.sentence.strip(), question.label, kind)
    identifies = attack.identifies
    count = min(CANDIDATES, max(2, scene.count_distinct())) if identifies else CANDIDATES  # a small corpus has fewer
    say(f"Comparing {count} sentences; the first time takes longest" if identifies else "Releasing and attacking")
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
    found = run_attack(request, scene)
    example = None if identifies else shown(found, attack, scene, kind)
    share = unknown_share(scene.model.tokenizer, scene.typed.texts)
    return {
        "attack": question.attack,
        "protection": question.protection,
        "dials": dict(question.dials),
        **_leakage(found, example, attack),
        **_texts(example, attack, kind, size, _remarks(found, protect, seconds, share), scene.model.tokenizer),
        "unknown": share,
        "guarantee": _guarantee(found, protect),
        "bound": bound(protect, found, scene),
        "candidates": count,
        "alike": alike(found),
        "release": _release(found),
        "seconds": time.monotonic() - began,
    }


def _values(question: Question, stage: Stage, menu: Menu) -> dict[str, Any]:
    before: Mapping[str, Any] | None = None
    if question.setting is not None:
        if not 0 <= question.setting < len(stage.settings):
            rule = f"in [0, {len(stage.settings)})"
            raise invalid("setting", question.setting, rule, "It numbers the settings of the study.")
        chosen = stage.settings[question.setting]
        before = chosen.values if chosen.protection == question.protection else None
    dials = checked(menu.dials(question.protection), question.dials, before or {})
    if question.protection != NONE and before is None:
        start = started(menu.dials(question.protection))
        alone = {dial.name for dial in menu.dials(question.protection) if dial.alone}
        dials = {**{k: v for k, v in start.items() if k not in alone or not alone & set(dials)}, **dials}
    found: dict[str, Any] = menu.values(question.protection, dials, before)
    return found


def shown(found: AttackResult, attack: Attack, scene: TypedScene, kind: str) -> Example:
    """Return the typed sentence beside what was read of it: of several readings the one that comes closest to it.

    Where sentences were mixed there is a reading for each mixture, and the sentence is in several of them. The truth is
    what was typed; scores compare with the tokenizer's spelling of it, where what it does not know counts as not read.
    """
    typed = scene.typed.texts[0]
    if not attack.is_ordered and kind == GRADIENT:
        every = found.examples[0]  # the words of the whole batch, in no order
        return replace(every, truth=typed, spelling=every.scored)
    truth = tokenizer_spelling(scene.model, typed)
    if not attack.is_ordered:
        truth = " ".join(dict.fromkeys(truth.split()))
    main = _main(attack, truth)
    guesses = [one.guess for one in found.examples] or [""]
    guess = max(guesses, key=lambda text: METRICS[main].score(text, truth))
    scores = {name: METRICS[name].score(guess, truth) for name in metrics_for(attack, DEFAULT_METRICS)}
    return Example(typed, guess, scores, spelling=truth)


def _main(attack: Attack, truth: str) -> str:
    """Return the figure that the page shows first: words in order where an attack reads them.

    ROUGE sees the letters a to z and digits alone: of a text with others it would say that nothing was read of them,
    or, where they are few, that all was read without them.
    """
    names = metrics_for(attack, DEFAULT_METRICS)
    plain = truth.isascii() and any(c.isalnum() for c in truth)
    order = ("rouge_l",) if plain else ("lcs_over_longer", "bag_recall")
    return next((name for name in order if name in names), names[0])


def _leakage(found: AttackResult, example: Example | None, attack: Attack) -> dict[str, Any]:
    if example is None:
        one = found.leakages[0]
        words = label_of(one.metric)
        main = {"words": words, "value": one.value, "low": one.low, "high": one.high, "n": one.n, "chance": one.chance}
        return {"leakage": main, "figures": []}
    main_name = _main(attack, example.scored)
    figures = [{"words": label_of(name), "value": value} for name, value in example.scores.items()]
    # of one sentence there is no chance level: that would be how far other texts of the release resemble it
    main = {"words": label_of(main_name), "value": example.scores[main_name], "n": 1, "chance": None}
    return {"leakage": main, "figures": figures}


def unknown_words(share: float) -> str:
    """Return what to say of the share of a sentence's tokens that the model does not know.

    >>> unknown_words(0.0), unknown_words(1.0)[:44]
    ('', 'The model knows none of the tokens of this s')
    """
    if not share:
        return ""
    if share == 1:
        return "The model knows none of the tokens of this sentence: it sees [UNK] for each, which no attack can spell."
    percent = "nearly all" if share > 0.99 else "less than 1%" if share < 0.01 else f"{share:.0%}"
    return f"The model does not know {percent} of the tokens: it sees [UNK] there, which no attack can spell."


def _remarks(found: AttackResult, protect: Any, seconds: float, share: float) -> list[str]:
    """Return what one must know of a reading: that much is unknown, the text was another, or the time was up."""
    said = [unknown_words(share)] if share else []
    if protect is not None and protect.place == TEXT:
        said.append("The sentence was rewritten before it left; what is read is the rewritten one.")
    if found.stopped:
        said.append(
            Message(
                f"Stopped by the time limit of {seconds:g} s, perhaps too early: start the explorer with a longer one "
                f"({setting('seconds')})."
            )
        )
    return said


def _texts(
    example: Example | None, attack: Attack, kind: str, size: int, remarks: list[str], tokenizer: Any
) -> dict[str, Any]:
    if example is None:
        notes = [*remarks, "This attack names a sentence among candidates; it spells none."]
        return {"truth": None, "guess": None, "note": " ".join(notes)}
    notes, marked = list(remarks), pieces
    if not attack.is_ordered:
        notes.append("Words and parts of words, in no order.")
        marked = unordered
    if size > 1 and not attack.is_ordered and kind == GRADIENT:
        notes.append(f"They are those of all {size} sentences in the release.")
    elif size > 1:
        notes.append(f"Of the {size} texts that were read, the one closest to yours.")
    truth = marked(example.truth, example.guess)
    if not attack.is_ordered and kind == GRADIENT:  # what was read are tokens: a word is read where all of its own are
        known = set(example.guess.split())
        truth = [replace(piece, right=known.issuperset(tokenizer.tokenize(piece.text))) for piece in truth]
    return {
        "truth": [{"text": piece.text, "right": piece.right} for piece in truth],
        "guess": [{"text": piece.text, "right": piece.right} for piece in marked(example.guess, example.truth)],
        "note": " ".join(notes),
    }


def unordered(text: str, other: str) -> list[Piece]:
    """Return a text word by word, marked where the word stands anywhere in the other.

    >>> [(p.text, p.right) for p in unordered("red cat", "Cat, blue")]
    [('red', False), (' cat', True)]
    """
    known = {bare(word) for word in other.split()}
    words: Sequence[str] = text.split()
    return [Piece(f" {word}" if place else word, bare(word) in known) for place, word in enumerate(words)]


def _guarantee(found: AttackResult, protect: Any) -> dict[str, Any]:
    promise = found.guarantee
    columns = {name: value for name, value in found.epsilon_by_adjacency.items() if value is not None}
    if promise is None:
        sentence = f"No guarantee: {OPEN}." if protect is None else "No guarantee is known for this release."
        return {"epsilon": None, "certified": False, "reason": OPEN, "sentence": sentence, "columns": columns}
    return {
        **promise.as_dict(),
        "sentence": promise.sentence(assumptions=False),
        "columns": columns,
    }


def bound(protect: Any, found: AttackResult, scene: TypedScene) -> float | None:
    """Return how often, at most, any attack can name the right one of 64 candidates from such a release.

    None where nothing is proven: without a protection, and where a figure is only an estimate.
    """
    if found.bound is not None:
        return None if protect is None else found.bound
    promise = found.guarantee
    if protect is None or promise is None or not promise.exists or not promise.certified:
        return None
    bounds = [most_named(promise.epsilon, promise.delta, CANDIDATES)]
    event = _event(protect, scene)
    for adjacency in Adjacency if event is not None else ():
        # each adjacency has a record of its own to compare with, and whatever it proves is proven
        with suppress(UnsupportedError):
            bounds.append(most_identified(event, CANDIDATES, adjacency))
    return min(bounds)


def alike(found: AttackResult) -> str:
    """Return in what the candidates of the bound do not differ: what the attacker is told besides the release."""
    told = () if found.release.get("simulated") else found.release.get("known", ())
    return " and ".join(_ONE_OF[word] for word in told)


def _event(protect: Any, scene: TypedScene) -> Any:
    """Return what one release costs, where that does not depend on its text."""
    if protect.place == GRADIENT:
        return protect.event
    if protect.place == REPRESENTATION and protect.stored and protect.mixes == 1:
        return protect.once(np.zeros(1, dtype=np.int64), scene.model.width, scene.model.classes, Rng.secret()).event
    return None


def _release(found: AttackResult) -> str:
    """Return what the attacker saw, and was given besides, in words."""
    facts = found.release
    size = int(facts.get("batch_size", 1))
    texts = "your sentence" if size == 1 else f"{size} sentences, yours among them"
    if facts.get("simulated"):
        texts = f"one of {facts['candidates']} sentences, yours among them"
    return f"{describe_release(facts, texts=texts)}. {describe_knowledge(facts)}"
