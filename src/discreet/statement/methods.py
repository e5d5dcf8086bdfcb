"""What a statement says about each method: algorithm, sensitivity, contribution, and who sees what.

One entry per protection in the catalog, one for those of other packages, and one for loops of the user's own.
Sentences are templates over the facts of a run: `{unit}` and the public settings of the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CENTRAL, LOCAL, FEDERATED, ENCRYPTED = TRUST = ("central", "local", "federated", "encrypted")


@dataclass(frozen=True)
class Method:
    """Sentences about a method; a setting that a run does not record reads "not recorded"."""

    label: str
    trust: str
    algorithm: str
    sensitivity: str
    contribution: str
    seen: str  # what leaves
    not_protected: tuple[str, ...] = ()


_WORDS_NOT = (
    "the number of words of every text, labels and all other columns, which leave unchanged",
    "the meaning of a text as a whole: the guarantee is that of each word, and a text costs the sum over its words",
)

# How the noise of DP-SGD depends on that of other steps, by the name of the correlation.
CORRELATED = {
    "lambda-cgd": ", less {decay} times the noise that was drawn for the step before",
    "banded": " after multiplication by the inverse of a matrix with {bands} bands, so that the noise of neighbouring "
    "steps partly cancels",
}
LATER = " Correlated noise shows a {unit} in later sums too, which the events of this statement count."

METHODS: dict[str, Method] = {
    "dp-sgd": Method(
        "DP-SGD",
        CENTRAL,
        "{drawing} The gradient of all rows of a drawn {unit} is clipped to norm {clip_norm}, and Gaussian noise of "
        "standard deviation {noise_multiplier} times that norm is added to the sum{correlated}. {steps} steps.",
        "{clip_norm} in the L2 norm, the largest gradient of one {unit} (add/remove, zero-out); twice that under "
        "replace-one. The noise multiplier {noise_multiplier} is the standard deviation divided by it.{later}",
        "All rows of a {unit} together contribute one gradient, clipped to norm {clip_norm}: more rows do not cost "
        "more.",
        "the final weights, which depend on the noisy sums alone",
    ),
    "dir-dp-sgd": Method(
        "directional DP-SGD",
        CENTRAL,
        "In every step a fixed number of {unit}s is drawn at random. The gradient of each is replaced by a random "
        "direction from the von Mises–Fisher distribution around its own, of concentration {kappa}, and the directions "
        "are averaged. {steps} steps.",
        "2, the largest distance between two directions. The cost is that of the distribution of concentration "
        "{kappa} itself.",
        "All rows of a {unit} together contribute one direction of length 1: more rows do not cost more.",
        "the final weights, which depend on the random directions alone",
    ),
    "texthide": Method(
        "TextHide",
        CENTRAL,
        "Sentence vectors are mixed with those of {others} other sentences and multiplied by a secret mask of signs "
        "from a pool of {masks}. No noise of a known distribution is added.",
        "not defined: without noise there is no bound on what one {unit} changes",
        "Not bounded. Each row of a {unit} enters the mixtures of its batches.",
        "the final weights; in training, the mixed and masked vectors and their mixed labels",
        ("everything, in the sense of differential privacy: the method is a heuristic, and attacks on it are known",),
    ),
    "dp-ie": Method(
        "DP instance encoding",
        CENTRAL,
        "Sentence vectors of a frozen encoder are clipped, mixed, and released once with fresh {mechanism} noise. "
        "Training reads the released vectors.",
        "the clip norm times the total mixing weight of the rows of one {unit}; the recorded events hold the noise "
        "divided by it",
        "Each row of a {unit} enters the mixtures with its weight; the cost is computed for the {unit} with the "
        "largest total.",
        "the mixed and noisy vectors with their labels, and the final weights",
    ),
    "ldp": Method(
        "local differential privacy",
        LOCAL,
        "The vector of each sentence, of a frozen encoder, is projected to {dimension} dimensions, bounded, and "
        "randomized by the {mechanism} mechanism before it is sent. Training reads what was sent.",
        "twice the bound on the norm of one vector, which may be exchanged for any other; a {unit} of several "
        "sentences pays for each of them",
        "Each sentence of a {unit} is sent once and paid for; epsilon is that of all of them together.",
        "each randomized vector{labels}, and the final weights",
        ("how many sentences each {unit} sends",),
    ),
    "santext": Method(
        "SanText",
        LOCAL,
        "Every word is replaced by a word that is sampled near it, with epsilon {epsilon_per_word} per word.",
        "1, the largest distance between two words of the public vocabulary, by which all distances are divided",
        "Every word of a {unit} is paid for; epsilon is that of the {unit} with the most words.",
        "the rewritten texts",
        _WORDS_NOT,
    ),
    "santext+": Method(
        "SanText+",
        LOCAL,
        "Sensitive words, and those outside the vocabulary, are replaced by sampled sensitive words, with epsilon "
        "{epsilon_per_word} per word; other words are replaced with probability {sample_others}.",
        "1, the largest distance between two words of the public vocabulary, by which all distances are divided",
        "Every sensitive word of a {unit} is paid for.",
        "the rewritten texts, in which words that are not on the list stay as they are",
        (*_WORDS_NOT, "every word that is not on the list of sensitive words"),
    ),
    "word-noise": Method(
        "word noise",
        LOCAL,
        "Noise is added to the vector of every word, with epsilon {epsilon_per_word} per word, and the word is "
        "replaced by the nearest one.",
        "1, the largest distance between two words of the public vocabulary, by which all distances are divided",
        "Every word of a {unit} is paid for; epsilon is that of the {unit} with the most words.",
        "the rewritten texts",
        _WORDS_NOT,
    ),
    "central-dp": Method(
        "client-level DP",
        FEDERATED,
        "The server clips the update of every client and adds Gaussian noise to their sum.",
        "the clip norm of an update; the events below hold the noise divided by it",
        "All rows of a client together contribute one clipped update in each round.",
        "the final weights and the noisy sums of each round",
        ("every client's update towards the server, which sees it before noise is added",),
    ),
    "secure-sum": Method(
        "client-level DP with a secure sum",
        FEDERATED,
        "Every client clips its update, rounds it to integers, and adds its share of integer noise. The server "
        "receives only the sum of the survivors' updates, by a secure sum.",
        "the clip norm of an update, enlarged by its rounding; the events below hold the noise divided by it",
        "All rows of a client together contribute one clipped update in each round.",
        "the final weights and the noisy sums of each round",
        ("a client's update, if the server does not follow the protocol or too many clients reveal their noise to it",),
    ),
    "third party": Method(
        "a protection of another package",
        CENTRAL,
        "The protection {name} of another package. Its code is not known to this statement; the events below are those "
        "that it stated before its noise was used.",
        "as the protection bounded it; whether it did was not checked",
        "As the protection bounded it; whether it did was not checked.",
        "not recorded: what the protection and the training released",
        ("whatever the protection does otherwise than the events say that it stated",),
    ),
    "own loop": Method(
        "noise added in a loop of the user's own",
        CENTRAL,
        "The events below were recorded before their noise was used. The loop itself is not known to this statement.",
        "that of the recorded events, which hold the noise divided by it",
        "As the loop bounded it; it is not recorded.",
        "not recorded: whatever the loop released",
        ("whatever the loop releases without recording it in the ledger",),
    ),
}
_ALIASES = {"noise": "word-noise"}
_UNPROTECTED = Method(
    "none",
    CENTRAL,
    "Ordinary training, without clipping and without noise.",
    "not bounded",
    "Not bounded.",
    "the final weights, which may contain training text",
    ("everything: the model may reveal its training text",),
)


def method_of(protection: Mapping[str, Any] | None) -> Method:
    """Return the method of a protection by its name; one that is not in the table belongs to another package."""
    if protection is None:
        return _UNPROTECTED
    name = str(protection.get("name"))
    return METHODS.get(_ALIASES.get(name, name), METHODS["third party"])


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with the values of a run.

    >>> filled("{rate} of {unit}s, {kappa}", {"rate": 0.12345678, "unit": "note"})
    '0.123457 of notes, not recorded'
    """

    class Known(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return "not recorded"

    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
    return template.format_map(Known(shown))
