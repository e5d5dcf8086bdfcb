"""Attacks on people behind released texts and vectors: linkage, pseudonyms and attributes, measured beside chance.

The owner's side is simulated: names are removed or replaced, a protection may rewrite the texts or vectors, and the
attack sees only that. What the attacker knows besides is a register of people, a list of names, or public text.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discreet.attacks.base import Need
from discreet.attacks.extraction.attribute import AttributeInference
from discreet.attacks.extraction.linkage import Linkage, Register, dates_in, register_of
from discreet.attacks.extraction.pseudonyms import PseudonymDictionary, pseudonymizer
from discreet.core.errors import DataError, UnsupportedError, first_line, invalid, setting
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Leakage, RepresentationRelease, TextRelease
from discreet.data.corpus import Corpus
from discreet.data.notes import identifiers_in, patients_of, public_names, secrets_in, secrets_of, without_identifiers
from discreet.experiment.attack.request import AttackRequest, Callbacks, Example, Findings
from discreet.experiment.attack.scene import Scene
from discreet.metrics.intervals import share_interval
from discreet.models.language_model import LanguageModel
from discreet.releases.description import READS, TEXT, Misfit
from discreet.releases.protected import attacker_pairs, epsilon_by_adjacency, release_of

RE_IDENTIFIED, REVERSED, ATTRIBUTE = "re_identified", "names_reversed", "attribute_accuracy"
METRICS = (RE_IDENTIFIED, REVERSED, ATTRIBUTE)
NOTES = "notes"
UNIT = "unit"  # column of a register that names the privacy unit
LABEL = "label"
_GENERATED_TOKENS = 100  # of a generated note
_PUBLIC_ROWS = 1000  # public rows that the attacker encodes for attribute inference

Judged = tuple[str, str, bool]  # the truth, the guess, and whether it is right


def attack_people(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Run an attack on the people behind some rows of a scene, and measure how often it is right.

    Guarantee: none for the result, which says who a text is about; it states the guarantee of the release.
    """
    rng, attack = Rng(request.seed), request.attack
    if isinstance(attack, Linkage) and isinstance(scene.model, LanguageModel) and scene.run is not None:
        return link_generated(attack, request, scene, rng)
    rows = scene.draw(request.examples, rng.fork("rows"), max_words=request.max_words)
    noise = Rng.secret() if request.noise_seed is None else Rng(request.noise_seed).fork("noise")
    callbacks.progress("attacking", 0, 1)
    if isinstance(attack, Linkage):
        found = _link(attack, request, scene, rows, noise)
    elif isinstance(attack, PseudonymDictionary):
        found = _reverse(attack, request, scene, rows)
    elif isinstance(attack, AttributeInference):
        found = _infer(attack, request, scene, rows, noise)
    else:
        raise UnsupportedError(f"Expected an attack on people, got {request.label}. Use another function.")
    callbacks.progress("attacking", 1, 1)
    return found


def _findings(
    request: AttackRequest,
    metric: str,
    judged: Sequence[Judged],
    chance: float,
    *,
    people: Sequence[str] | None = None,
    guarantee: Guarantee | None = None,
    **found: Any,
) -> Findings:
    """Return the result of an attack with its guesses.

    `people` names the person of each guess, so that the interval counts people, and not their texts; None where each
    text is drawn independently.
    """
    right = np.array([hit for _, _, hit in judged], dtype=bool)
    _, person = np.unique(people, return_inverse=True) if people else (None, np.arange(len(right)))
    low, high = share_interval(right, person)
    return Findings(
        leakages=(Leakage(metric, float(right.mean()), low, high, len(right), chance),),
        examples=tuple(Example(truth, guess, {metric: float(hit)}, 0) for truth, guess, hit in judged),
        guarantee=guarantee,
        epsilon_by_adjacency=epsilon_by_adjacency(request.protect, request.delta, stated=guarantee),
        **found,
    )


def _link(attack: Linkage, request: AttackRequest, scene: Scene, rows: Corpus, noise: Rng) -> Findings:
    units, register = register_for(attack.register, scene, request.seed)
    if rows.units is None:
        raise DataError(f"Expected texts with people to link them to. Name the column of people ({setting('unit')}).")
    check_registered(set(rows.units), units, rows.unit_name)
    texts = [without_identifiers(text) for text in rows.texts] if _is_notes(rows) else list(rows.texts)
    release, stated = _rewritten(request, texts, noise)
    knows = Knowledge(defence=request.protect, extra={Need.REGISTER.value: register})
    guess = attack.run(release, knows, Rng(request.seed).fork("attack"))
    linked = _linked(release.texts, guess, units, rows.units)
    chance = 1 / len(units)
    names = [name.strip() for name in attack.columns.split(",") if name.strip()] or list(register.columns)
    return _findings(
        request,
        RE_IDENTIFIED,
        linked,
        chance,
        people=rows.units,
        guarantee=stated,
        release=_facts(request, scene, "text", len(rows), [f"a register of {len(units):,} people: {', '.join(names)}"]),
        details={"people": len(units), "columns": names, "said": _said(register, names, release.texts)},
        verdict=f"An attacker who knows {', '.join(names)} of {len(units):,} people names the right one for "
        f"{_share(linked):.1%} of {len(linked):,} texts without names; guessing names {chance:.2%}.",
    )


def check_registered(people: set[str], units: Sequence[str], unit_name: str) -> None:
    """Reject people who are not in the register."""
    missing = people - set(units)
    if missing:
        raise DataError(
            f"Expected every {unit_name} of the attacked texts in the register, {len(missing)} of {len(people)} are "
            f"missing. Complete its column {UNIT!r}."
        )


def link_generated(attack: Linkage, request: AttackRequest, scene: Scene, rng: Rng) -> Findings:
    """Link texts that a language model generated; a text is about the person whose identifiers it holds, if any.

    Guarantee: that of the model, unchanged; generation is post-processing.
    """
    assert isinstance(scene.model, LanguageModel)
    corpus = scene.everything
    units, register = register_for(attack.register, scene, request.seed)
    if not _is_notes(corpus):
        raise UnsupportedError(
            "Expected a language model of the built-in notes for linkage of generated texts: only their identifiers "
            "are known. Link released texts of your own instead."
        )
    texts = scene.model.generate(count=request.examples, max_tokens=_GENERATED_TOKENS, rng=rng.fork("generate"))
    owners = owners_of(texts, corpus)
    released = tuple(without_identifiers(text) or "." for text in texts)
    knows = Knowledge(extra={Need.REGISTER.value: register})
    guess = attack.run(TextRelease(released), knows, rng.fork("attack"))
    linked = _linked(released, guess, units, owners)
    held = sum(owner is not None for owner in owners)
    chance = held / len(texts) / len(units)
    return _findings(
        request,
        RE_IDENTIFIED,
        linked,
        chance,
        guarantee=None if scene.target is None else scene.target.guarantee,
        release=_facts(request, scene, "text", len(texts), [f"a register of {len(units):,} people"]),
        details={"people": len(units), "generated": len(texts), "about_a_training_patient": held},
        verdict=f"Of {len(texts):,} generated texts, {held:,} hold the name or a number of a patient of the training "
        f"text, and {_share(linked):.1%} are linked to that patient after names and numbers are removed; guessing "
        f"links {chance:.2%}.",
    )


def owners_of(texts: Sequence[str], corpus: Corpus) -> list[str | None]:
    """Return the unit whose name, record number or telephone number each text holds, or None."""
    units: dict[str, str] = {}
    for row, split in enumerate(corpus.splits):
        if split == "train" and corpus.units is not None:
            secret = secrets_in(corpus.texts[row])
            units |= dict.fromkeys((secret.name, secret.record, secret.phone), corpus.units[row])
    return [next((units[one] for one in identifiers_in(text) if one in units), None) for text in texts]


def _said(register: Register, names: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Return the share of texts that say anything about each column."""
    return {name: float(np.mean([bool(register.column(name).said(text)) for text in texts])) for name in names}


def _reverse(attack: PseudonymDictionary, request: AttackRequest, scene: Scene, rows: Corpus) -> Findings:
    dictionary = _dictionary(attack.dictionary, rows)
    if _is_notes(rows):
        names = [one.name for one in secrets_of(rows)]
    elif rows.units is not None:
        names = list(rows.units)
    else:
        raise DataError(f"Expected people whose names get pseudonyms. Name their column ({setting('unit')}).")
    pseudonym = pseudonymizer(attack.scheme, attack.digits, Rng(request.seed).fork("pseudonyms"))
    texts = tuple(
        without_identifiers(text, name=pseudonym(name)) if _is_notes(rows) else f"{pseudonym(name)}: {text}"
        for text, name in zip(rows.texts, names, strict=True)
    )
    knows = Knowledge(extra={Need.DICTIONARY.value: dictionary})
    guess = attack.run(TextRelease(texts), knows, Rng(request.seed).fork("attack"))
    undone = [(name, answer, answer == name) for name, answer in zip(names, guess.texts, strict=True)]
    keyed = attack.scheme in {"hmac", "random"}
    remedy = "The key is secret, so that names cannot be tried." if keyed else "Use a secret key, or random pseudonyms."
    return _findings(
        request,
        REVERSED,
        undone,
        1 / len(dictionary),
        people=names,
        release=_facts(request, scene, "text", len(rows), [f"{len(dictionary):,} names to try"]),
        details={"scheme": attack.scheme, "names_tried": len(dictionary)},
        verdict=f"A list of {len(dictionary):,} names reverses {_share(undone):.1%} of the pseudonyms made with "
        f"{attack.scheme}. {remedy}",
    )


def _infer(attack: AttributeInference, request: AttackRequest, scene: Scene, rows: Corpus, noise: Rng) -> Findings:
    everything = scene.everything
    known = set(rows.texts)
    owners = set(rows.units or ())
    public = everything.take(
        [
            row
            for row, text in enumerate(everything.texts)
            if text not in known and (everything.units is None or everything.units[row] not in owners)
        ][:_PUBLIC_ROWS]
    )
    if len(public) < 2:
        raise DataError("Expected public rows with the attribute, got too few. Attack fewer texts.")
    names, (of_public, of_rows) = attribute_classes(attack, scene, request.seed, (public, rows))
    attacker = Rng(request.seed).fork("own")
    if request.protect is None:
        vectors = scene.vectors(public.texts)
    else:
        vectors, _ = attacker_pairs(request.protect, scene.model, public, attacker, delta=request.delta)
    released = release_of(
        RepresentationRelease,
        request.protect,
        scene.model,
        rows,
        noise.fork("release"),
        delta=request.delta,
        public=scene.partners(request.protect, rows),
    )
    assert isinstance(released.seen, RepresentationRelease)
    order = range(len(rows)) if released.rows is None else released.rows
    knows = Knowledge(defence=request.protect, extra={Need.ATTRIBUTES.value: (vectors, of_public)})
    guess = attack.run(released.seen, knows, Rng(request.seed).fork("attack"))
    truth = [of_rows[row] for row in order]
    inferred = [
        (names[wanted], names[index], index == wanted) for wanted, index in zip(truth, guess.indices, strict=True)
    ]
    majority = Counter(of_public).most_common(1)[0][0]
    chance = float(np.mean([wanted == majority for wanted in truth]))
    given = [f"{len(public):,} public texts with their {attack.attribute}"]
    return _findings(
        request,
        ATTRIBUTE,
        inferred,
        chance,
        people=None if rows.units is None else [rows.units[row] for row in order],
        guarantee=released.seen.guarantee,
        release=_facts(request, scene, "representation", len(rows), given),
        details={"attribute": attack.attribute, "classes": list(names)},
        verdict=f"From its vector, the {attack.attribute} of {_share(inferred):.1%} of {len(inferred):,} texts is "
        f"predicted; the most frequent answer is right for {chance:.1%}.",
    )


def attribute_classes(
    attack: AttributeInference, scene: Scene, seed: int, parts: Sequence[Corpus]
) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the names of an attribute's classes, and the class of every row of each corpus."""
    if attack.attribute == LABEL:
        if scene.rows.labels is None:
            raise invalid("attribute", LABEL, "a column of a register", "These texts have no labels.")
        return scene.rows.label_names, [list(part.labels or ()) for part in parts]
    units, register = register_for(attack.register, scene, seed)
    column = register.column(attack.attribute) if attack.attribute in register.columns else None
    if column is None:
        known = (LABEL, *register.columns)
        raise invalid("attribute", attack.attribute, f"one of {', '.join(known)}", "These are known of the people.")
    wanted = [part.units for part in parts if part.units is not None]
    if len(wanted) < len(parts):
        raise DataError(f"Expected texts with people behind them. Name the column of people ({setting('unit')}).")
    check_registered({unit for names in wanted for unit in names}, units, parts[0].unit_name)
    values = {unit: ";".join(sorted(one)) for unit, one in zip(units, column.values, strict=True)}
    if column.kind == "age":
        values = banded(values, attack.bands)
    names = tuple(sorted(set(values.values())))
    return names, [[names.index(values[unit]) for unit in part.units or ()] for part in parts]


def banded(values: Mapping[str, str], bands: int) -> dict[str, str]:
    """Return numbers as about equally large groups, by their quantiles; empty cells and lists are one more group.

    >>> banded({"a": "20", "b": "30", "c": "40", "d": "50"}, 2)
    {'a': '20-30', 'b': '20-30', 'c': '40-50', 'd': '40-50'}
    """
    numbers = {key: int(value) for key, value in values.items() if value.isdigit()}
    cuts = np.quantile(list(numbers.values()), np.arange(1, bands) / bands)
    groups = {key: int(np.searchsorted(cuts, number, side="left")) for key, number in numbers.items()}
    names = {}
    for group in set(groups.values()):
        inside = [numbers[key] for key in numbers if groups[key] == group]
        names[group] = f"{min(inside)}-{max(inside)}"
    return {key: names[groups[key]] if key in groups else "unknown" for key in values}


def register_for(path: str, scene: Scene, seed: int) -> tuple[tuple[str, ...], Register]:
    """Return the units of a register and the register: from a file, or that of the built-in notes.

    The register of the notes holds of every patient the age, the sex, the job and the dates of all visits.
    """
    corpus = scene.everything
    if path:
        return read_register(Path(path))
    if not _is_notes(corpus):
        raise invalid(
            "register",
            "",
            "a CSV file of people",
            f"It has a column {UNIT!r} and what an attacker may know of each, such as age and sex.",
        )
    seeds = [seed, 0] if scene.run is None else [scene.run.settings.seed, seed, 0]
    people = patients_of(corpus, seeds)
    dates: dict[str, list[str]] = {unit: [] for unit in people}
    for text, unit in zip(corpus.texts, corpus.units or (), strict=True):
        dates[unit] += dates_in(secrets_in(text).date)
    rows = [
        {
            "age": str(person.age),
            "sex": "woman" if person.woman else "man",
            "job": person.job,
            "date": ";".join(dict.fromkeys(dates[unit])),
        }
        for unit, person in people.items()
    ]
    return tuple(people), register_of(rows)


def read_register(path: Path) -> tuple[tuple[str, ...], Register]:
    """Return the units and the other columns of a CSV file of people."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"Expected a CSV file of people at {str(path)!r}. {first_line(error)}") from None
    if not rows or UNIT not in rows[0]:
        raise DataError(f"Expected a column {UNIT!r} in {str(path)!r}. Name in it the unit that each row is about.")
    units = tuple(str(row[UNIT]) for row in rows)
    if len(set(units)) != len(units):
        raise DataError(f"Expected every {UNIT} once in {str(path)!r}. Merge the rows of a person; separate with ';'.")
    people = [{key: value or "" for key, value in row.items() if key not in {UNIT, None}} for row in rows]
    return units, register_of(people)


def _dictionary(path: str, rows: Corpus) -> tuple[str, ...]:
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DataError(f"Expected a file with one name per line at {path!r}. {first_line(error)}") from None
        names = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if not names:
            raise DataError(f"Expected a file with one name per line at {path!r}. It is empty.")
        return names
    if not _is_notes(rows):
        raise invalid("dictionary", "", "a file with one name per line", "They are the names that the attacker tries.")
    return public_names()


def _rewritten(request: AttackRequest, texts: Sequence[str], noise: Rng) -> tuple[TextRelease, Guarantee | None]:
    """Return texts as they are released, rewritten by a protection of text."""
    if request.protect is None:
        return TextRelease(tuple(texts)), None
    if request.protect.place != TextRelease.kind:
        raise Misfit(READS[TEXT], request.protect.name, request.protect.place).error(request.label)
    release = request.protect.release(list(texts), noise.fork("rewrite"))
    return release, release.guarantee


def _linked(texts: Sequence[str], guess: Guess, units: Sequence[str], owners: Sequence[str | None]) -> list[Judged]:
    """Return each text with the person it was linked to, and whether it is about that person."""
    return [
        (text, units[index], units[index] == owner)
        for text, index, owner in zip(texts, guess.indices, owners, strict=True)
    ]


def _share(judged: Sequence[Judged]) -> float:
    """Return the share of guesses that are right."""
    return sum(right for _, _, right in judged) / len(judged)


def _facts(request: AttackRequest, scene: Scene, kind: str, count: int, given: list[str]) -> dict[str, Any]:
    return {
        "kind": kind,
        **({"vectors": count, "width": scene.model.width} if kind == RepresentationRelease.kind else {}),
        "model": scene.origin,
        "batch_size": count,
        "steps": 1,
        "known": [],
        "given": given,
        "protection": None if request.protect is None else request.protect.facts(),
    }


def _is_notes(corpus: Corpus) -> bool:
    return corpus.name == NOTES
