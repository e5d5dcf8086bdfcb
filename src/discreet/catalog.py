"""Every attack, protection, aggregation and built-in corpus by name, with its module, label and one line of help.

This is the only place where names become objects. Nothing is imported until an entry is loaded, so that commands, run
folders and studies can list names quickly. Metrics are entries of `discreet.metrics.table`, which `metrics` returns.
Names of plug-ins and `module:Name` are looked up in the same tables (`discreet.plugins`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from discreet.core.errors import DataError, SettingError, invalid, one_of, shown
from discreet.core.settings import parse
from discreet.plugins import Names, Unfit, check_name, docstring_line

if TYPE_CHECKING:
    from discreet.attacks.base import Attack
    from discreet.data.corpus import Corpus
    from discreet.federated.aggregation import Aggregation
    from discreet.metrics.table import Metric
    from discreet.protections.base import Protection


@dataclass(frozen=True)
class Entry:
    """A catalog entry: "module:Name", a label for sentences, and one line of help."""

    path: str
    label: str
    help: str

    def load(self) -> Any:
        """Import the module and return the object.

        >>> ATTACKS["dager"].load().__name__
        'Dager'
        """
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class CorpusEntry(Entry):
    """A built-in corpus: a function and its arguments; a generated one also takes a seed and a number of rows."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    generated: bool = False

    def make(self, seed: int, rows: int | None) -> Corpus:
        """Return the corpus; one that is not generated ignores the seed and has all its rows."""
        shape = {"seed": seed, **({} if rows is None else {"count": rows})} if self.generated else {}
        made: Any = self.load()(**shape, **self.arguments)
        if not isinstance(made, Entry("discreet.data.corpus:Corpus", "", "").load()):
            raise DataError(f"Expected a Corpus from {self.path}, got {type(made).__name__}. Return one.")
        corpus: Corpus = made
        return corpus


@dataclass(frozen=True)
class AttackEntry(Entry):
    """An attack, with the kind of release it sees, repeated here so that its class need not be loaded.

    `about_people` is true if it asks who a release is about, and not what the text says.
    """

    sees: str = "gradient"
    about_people: bool = False


_BASES = {"attack": "discreet.attacks.base:Attack", "protection": "discreet.protections.base:Protection"}
_FROZEN = "a frozen dataclass (@dataclass(frozen=True)), whose fields are its settings"


def _check_class(kind: str, name: str, found: Any) -> None:
    """Reject what is not a complete class of a kind: a frozen dataclass that declares what its base class asks for."""
    base: Any = Entry(_BASES[kind], "", "").load()
    rule = f"a subclass of {_BASES[kind].replace(':', '.')}"
    if not isinstance(found, type):
        raise Unfit(rule, f"a {type(found).__name__}")
    own: Any = found
    if not issubclass(own, base):
        raise Unfit(rule, f"the class {own.__name__}, which is not one")
    if missing := sorted(own.__abstractmethods__):
        raise Unfit("complete", f"a class without {', '.join(missing)}")
    params = vars(own).get("__dataclass_params__")
    if params is None:
        raise Unfit(_FROZEN, "an ordinary class")
    if not params.frozen:
        raise Unfit(_FROZEN, "a dataclass that is not frozen")
    check_name(name, own.name)


def _words(name: str, declared: object) -> str:
    """Return the label that a class declares, or its name in words."""
    return declared if isinstance(declared, str) and declared else name.rpartition(":")[2].replace("-", " ")


def _attack_entry(name: str, path: str, found: Any) -> AttackEntry:
    """Return the entry of an attack of a plug-in."""
    _check_class("attack", name, found)
    if not hasattr(found, "sees"):
        raise Unfit("complete", "a class that does not declare `sees`, the kind of release that it attacks")
    about_people = found.family.value == "people"
    return AttackEntry(path, _words(name, found.label), docstring_line(found), found.sees.kind, about_people)


def _protection_entry(name: str, path: str, found: Any) -> Entry:
    """Return the entry of a protection of a plug-in."""
    _check_class("protection", name, found)
    if not hasattr(found, "place"):
        raise Unfit("a protection of gradients, vectors or texts", "a class that declares no `place`; subclass one")
    return Entry(path, _words(name, found.label), docstring_line(found))


def _corpus_entry(name: str, path: str, found: Any) -> CorpusEntry:
    """Return the entry of a corpus of a plug-in."""
    try:
        inspect.signature(found).bind(seed=0, count=1)
    except (TypeError, ValueError):
        rule = "a function that takes `seed` and `count`, the number of rows, and returns a Corpus"
        raise Unfit(rule, f"{type(found).__name__} {shown(found, 60)}") from None
    return CorpusEntry(path, _words(name, None), docstring_line(found), generated=True)


_ATTACKS: dict[str, AttackEntry] = {
    "lamp": AttackEntry(
        "discreet.attacks.matching.lamp_tag_dlg:Lamp",
        "LAMP",
        "Alternates gradient matching with discrete changes scored by a language model.",
    ),
    "word-draws": AttackEntry(
        "discreet.attacks.matching.word_draws:WordDraws",
        "sampled text search",
        "Samples texts, keeps those whose gradient fits best, and samples around them; tolerates noise.",
    ),
    "tag": AttackEntry(
        "discreet.attacks.matching.lamp_tag_dlg:Tag",
        "TAG",
        "Gradient matching by squared plus absolute differences.",
    ),
    "dlg": AttackEntry(
        "discreet.attacks.matching.lamp_tag_dlg:Dlg",
        "DLG",
        "Gradient matching by squared distance.",
    ),
    "masked-dlg": AttackEntry(
        "discreet.attacks.matching.masked_dlg:MaskedDLG",
        "masked DLG",
        "DLG with a learned mask: gradient matching against vectors that TextHide mixes and masks.",
    ),
    "dager": AttackEntry(
        "discreet.attacks.span.dager:Dager",
        "DAGER",
        "Recovers sentences exactly from a gradient: their states lie in the span of a layer's inputs.",
    ),
    "subspace": AttackEntry(
        "discreet.attacks.span.subspace:Subspace",
        "subspace",
        "Finds the sentence whose states lie closest to the span of a layer's inputs; works under little noise.",
    ),
    "positions": AttackEntry(
        "discreet.attacks.rows:PositionRows",
        "position rows",
        "Recovers one sentence from the gradient of the position embeddings.",
    ),
    "embedding-rows": AttackEntry(
        "discreet.attacks.rows:EmbeddingRows",
        "embedding rows",
        "Recovers the set of tokens of a batch from the gradient of the word embeddings.",
    ),
    "decepticons": AttackEntry(
        "discreet.attacks.crafted.decepticons:Decepticons",
        "Decepticons",
        "A malicious server sends crafted weights and recovers sentences from their gradient.",
    ),
    "one-of-n": AttackEntry(
        "discreet.attacks.identification:OneOfN",
        "1-of-n",
        "Identifies which of n known candidates produced a noisy gradient, by maximum likelihood.",
    ),
    "rss": AttackEntry(
        "discreet.attacks.representation.similarity:Similarity",
        "similarity search",
        "Finds which of the attacker's sentences produced a released vector.",
        sees="representation",
    ),
    "reprecon": AttackEntry(
        "discreet.attacks.representation.reprecon:RepRecon",
        "representation reconstruction",
        "Trains a network to reconstruct unprotected vectors from released ones, then searches among candidates.",
        sees="representation",
    ),
    "instance": AttackEntry(
        "discreet.attacks.representation.instance:InstanceReconstruction",
        "instance reconstruction",
        "Finds which candidates were mixed, from all instance encodings jointly.",
        sees="representation",
    ),
    "blind": AttackEntry(
        "discreet.attacks.representation.blind:BlindReconstruction",
        "blind reconstruction",
        "Reconstructs the private vectors from their mixtures, without candidates.",
        sees="representation",
    ),
    "inversion": AttackEntry(
        "discreet.attacks.representation.inversion:EmbeddingInversion",
        "embedding inversion",
        "Predicts the words of a sentence from its vector with a network trained on public text.",
        sees="representation",
    ),
    "loss": AttackEntry(
        "discreet.attacks.membership.thresholds:LossThreshold",
        "loss threshold",
        "Calls a text a member if the model's loss on it is small.",
        sees="model",
    ),
    "population": AttackEntry(
        "discreet.attacks.membership.thresholds:Population",
        "population threshold",
        "Compares the loss of a text with the losses of known non-members.",
        sees="model",
    ),
    "mia": AttackEntry(
        "discreet.attacks.membership.shadow:ShadowClassifier",
        "shadow models",
        "Learns from shadow models how predictions on members differ from those on non-members.",
        sees="model",
    ),
    "mia-r": AttackEntry(
        "discreet.attacks.membership.likelihood:ReferenceThreshold",
        "reference models",
        "Compares the loss of a text with its losses under models that were not trained on it.",
        sees="model",
    ),
    "mia-n": AttackEntry(
        "discreet.attacks.membership.thresholds:Neighbourhood",
        "neighbourhood comparison",
        "Compares the loss of a text with its loss after single words were replaced; needs no other model.",
        sees="model",
    ),
    "lira": AttackEntry(
        "discreet.attacks.membership.likelihood:Lira",
        "LiRA",
        "Tests how likely the model's confidence is under models trained with a text and under models without it.",
        sees="model",
    ),
    "rmia": AttackEntry(
        "discreet.attacks.membership.likelihood:Rmia",
        "RMIA",
        "Compares the likelihood ratio of a text with those of known non-members; needs few reference models.",
        sees="model",
    ),
    "ez-mia": AttackEntry(
        "discreet.attacks.membership.language:ErrorZone",
        "EZ-MIA",
        "Compares a fine-tuned language model with the one it started from, where it predicts the wrong token.",
        sees="model",
    ),
    "min-k": AttackEntry(
        "discreet.attacks.membership.language:MinK",
        "Min-K%",
        "Averages the log-probabilities of the least likely tokens of a text under a language model.",
        sees="model",
    ),
    "author": AttackEntry(
        "discreet.attacks.membership.shadow:Author",
        "author",
        "Asks whether any text of an author was used, from the confidence on all texts of the author.",
        sees="model",
    ),
    "exposure": AttackEntry(
        "discreet.attacks.extraction.exposure:CanaryExposure",
        "exposure of canaries",
        "Ranks all possible secrets of planted canaries by the model's loss.",
        sees="model",
    ),
    "extraction": AttackEntry(
        "discreet.attacks.extraction.discoverable:DiscoverableExtraction",
        "extraction",
        "Continues the beginnings of training texts; the probability of the true continuation is computed exactly.",
        sees="model",
    ),
    "class-inversion": AttackEntry(
        "discreet.attacks.extraction.class_inversion:ClassInversion",
        "class inversion",
        "Searches for the text that a class of the model likes best.",
        sees="model",
    ),
    "attribute": AttackEntry(
        "discreet.attacks.extraction.attribute:AttributeInference",
        "attribute inference",
        "Predicts a sensitive attribute of each text from its vector.",
        sees="representation",
        about_people=True,
    ),
    "linkage": AttackEntry(
        "discreet.attacks.extraction.linkage:Linkage",
        "linkage",
        "Names the person behind each text without names, by joining it with a register of people.",
        sees="text",
        about_people=True,
    ),
    "pseudonyms": AttackEntry(
        "discreet.attacks.extraction.pseudonyms:PseudonymDictionary",
        "dictionary attack on pseudonyms",
        "Reverses unsalted hashes of names by hashing a list of names.",
        sees="text",
        about_people=True,
    ),
}

ATTACKS = Names("attack", _ATTACKS, _attack_entry)

_PROTECTIONS: dict[str, Entry] = {
    "dp-sgd": Entry(
        "discreet.protections.dp_sgd:DPSGD",
        "DP-SGD",
        "Clips every unit's gradient and adds Gaussian noise to the sum.",
    ),
    "dir-dp-sgd": Entry(
        "discreet.protections.dir_dp_sgd:DirDPSGD",
        "directional DP-SGD",
        "Replaces every unit's gradient by a random direction near its own and averages the directions.",
    ),
    "texthide": Entry(
        "discreet.protections.texthide:TextHide",
        "TextHide",
        "Mixes sentence vectors with those of other sentences and flips their signs with a secret mask.",
    ),
    "dp-ie": Entry(
        "discreet.protections.instance_encoding:InstanceEncoding",
        "DP instance encoding",
        "Clips sentence vectors, mixes them, and adds fresh noise before their release.",
    ),
    "ldp": Entry(
        "discreet.protections.local.protection:LocalPrivacy",
        "local differential privacy",
        "Clips and randomizes each sentence vector on the user's machine before it is sent.",
    ),
    "santext": Entry(
        "discreet.protections.words.swap:SanText",
        "SanText",
        "Replaces every word by one sampled near it.",
    ),
    "santext+": Entry(
        "discreet.protections.words.swap:SanTextPlus",
        "SanText+",
        "Replaces the words of a list, and those outside the vocabulary, by words sampled from the list.",
    ),
    "word-noise": Entry(
        "discreet.protections.words.swap:NoisyWords",
        "word noise",
        "Adds noise to every word's vector and replaces the word by the nearest one.",
    ),
}

PROTECTIONS = Names("protection", _PROTECTIONS, _protection_entry)

AGGREGATIONS: dict[str, Entry] = {
    "mean": Entry(
        "discreet.federated.aggregation:Mean",
        "mean",
        "The weighted mean of the clients' updates, which the server sees one by one.",
    ),
    "central-dp": Entry(
        "discreet.federated.central:CentralDP",
        "client-level DP",
        "The server clips every client's update and adds Gaussian noise to the sum; the unit is a client.",
    ),
    "secure-sum": Entry(
        "discreet.federated.secure_sum.aggregations:SecureSum",
        "secure sum",
        "The server sees only the sum of the updates: each is masked, and the masks cancel; with noise on request.",
    ),
}

_NOTE_PAIRS, _REVIEWS = "discreet.data.note_pairs:note_pairs", "discreet.data.sources:reviews"
_CORPORA: dict[str, CorpusEntry] = {
    "notes": CorpusEntry(
        "discreet.data.notes:notes",
        "clinic notes",
        "Fictional clinic notes with their department; the patient is the privacy unit.",
        generated=True,
    ),
    "notes-pairs": CorpusEntry(
        _NOTE_PAIRS,
        "pairs of clinic notes",
        "Pairs of fictional clinic notes: about the same patient or not.",
        generated=True,
    ),
    "notes-pairs-scores": CorpusEntry(
        _NOTE_PAIRS,
        "pairs of clinic notes with scores",
        "Pairs of fictional clinic notes with a score from 0 to 5 for the similarity of the visits.",
        {"scores": True},
        generated=True,
    ),
    "reviews": CorpusEntry(
        _REVIEWS, "film reviews", "Film reviews from IMDb and Rotten Tomatoes, positive or negative; public text."
    ),
    "reviews-imdb": CorpusEntry(_REVIEWS, "IMDb reviews", "Only the reviews from IMDb.", {"part": "imdb"}),
    "reviews-rotten-tomatoes": CorpusEntry(
        _REVIEWS, "Rotten Tomatoes reviews", "Only the reviews from Rotten Tomatoes.", {"part": "rotten_tomatoes"}
    ),
}
CORPORA = Names("corpus", _CORPORA, _corpus_entry)


def attack_class(name: str) -> type[Attack]:
    """Return the class of an attack by its name.

    >>> attack_class("dagger")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected attack to be one of ... Did you mean 'dager'?
    """
    kind: type[Attack] = ATTACKS[ATTACKS.check("attack", name)].load()
    return kind


def attack_of(name: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return an attack by its name, with some of its settings changed; unknown settings are rejected by name."""
    return parse(attack_class(name), dict(values or {}), name)


def protection_class(name: str) -> type[Protection]:
    """Return the class of a protection by its name.

    >>> protection_class("dp-sdg")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected protect to be one of dp-sgd, dir-dp-sgd, ... Did you mean 'dp-sgd'?
    """
    kind: type[Protection] = PROTECTIONS[PROTECTIONS.check("protect", name)].load()
    return kind


def settings_of_protection(name: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of a protection by name."""
    from discreet.protections.base import user_fields

    return {field.name: field for field in user_fields(protection_class(name))}


def protection(name: str, values: Mapping[str, Any]) -> Protection:
    """Return a protection by its name and settings; the error for a setting of another protection names that one.

    >>> protection("dp-sgd", {"epsilon": 3.0, "kappa": 20.0})
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected kappa to be left out for dp-sgd, got 20.0. It belongs to dir-dp-sgd.
    """
    kind, own = protection_class(name), settings_of_protection(name)
    for key, value in values.items():
        if key not in own:
            others = [other for other in PROTECTIONS if key in settings_of_protection(other)]
            remedy = f"It belongs to {', '.join(others)}." if others else "No protection has it."
            raise invalid(key, value, f"left out for {name}", remedy)
    return parse(kind, dict(values), "protect")


def protection_from_table(values: Mapping[str, Any]) -> Protection:
    """Return a protection from values that include its name, as written by `Protection.as_table`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise SettingError(f"Expected [protect] with a name in {', '.join(PROTECTIONS)}. Add it.")
    return protection(values["name"], {key: value for key, value in values.items() if key != "name"})


def aggregation_from_table(values: Mapping[str, Any]) -> Aggregation:
    """Return how federated updates are summed, from values that include its name.

    >>> aggregation_from_table({"name": "mean"})
    Mean()
    """
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise SettingError(f"Expected [aggregation] with a name in {', '.join(AGGREGATIONS)}. Add it.")
    kind: type[Aggregation] = AGGREGATIONS[one_of("aggregation", values["name"], AGGREGATIONS)].load()
    return parse(kind, {key: value for key, value in values.items() if key != "name"}, "aggregation")


def metrics() -> Names[Metric]:
    """Return every metric by its name."""
    from discreet.metrics.table import METRICS

    return METRICS
