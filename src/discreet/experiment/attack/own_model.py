"""Attack a model that the user holds: a network of transformers or peft, its tokenizer, and some texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from discreet.attacks.base import Attack
from discreet.catalog import ATTACKS, attack_of
from discreet.core.errors import DataError, UnsupportedError, invalid, one_of, whole
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import DEFAULT_METRICS, AttackRequest, AttackResult
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scene import Scene
from discreet.models.base import TextModel, evaluating
from discreet.models.classifier import Classifier
from discreet.models.language_model import LanguageModel
from discreet.models.sequence_classifier import base_of
from discreet.models.token_classifier import TokenClassifier
from discreet.protections.base import Conditions, Protection, of_one_origin

_CAUSAL = ("ForCausalLM", "LMHeadModel")  # how transformers calls causal language models


def attack_model(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    attack: str | Attack = "dager",
    *,
    labels: Sequence[Any] | None = None,
    protect: Protection | None = None,
    batch_size: int = 1,
    public: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    delta: float = 1e-5,
    metrics: Sequence[str] = DEFAULT_METRICS,
    max_length: int | None = None,
    seconds: float | None = None,
    candidates: int | None = None,
    seed: int = 0,
    noise_seed: int | None = None,
) -> AttackResult:
    """Return what an attack reads of texts in the gradients that a model gives for them.

    The gradient that is attacked is that of the weights with `requires_grad`, as one client would send it. A causal
    language model reads each text between its start and end tokens, as in training here.

    Args:
        model: An AutoModelForSequenceClassification, AutoModelForCausalLM or AutoModelForTokenClassification, or one of
            them in a model of peft; a model of discreet is taken as it is.
        tokenizer: Its tokenizer; None for a model of discreet.
        texts: The texts to attack.
        attack: A name of the catalog, or an attack.
        labels: Class numbers or names, scores, or a list of classes for each token; class 0 if not given.
        protect: A protection of the gradient; one with a budget is resolved for that single release.
        batch_size: The number of texts in one gradient.
        public: Text that the attacker has; the prior of some attacks is fitted to it.
        settings: Settings of an attack that is given by its name.
        delta: Delta of the guarantee of one release.
        metrics: The names of the metrics that compare guesses and texts.
        max_length: Truncates texts to so many tokens.
        seconds: Limits the search in each batch.
        candidates: The number of texts that the attacker chooses among, for 1-of-n.
        seed: Seed of the attack.
        noise_seed: Makes the noise repeatable, and the guarantee an estimate.

    Guarantee: none for the result, which holds private texts; it states the guarantee of one release.

    ```python
    network = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    result = discreet.attack_model(network, tokenizer, ["The patient was seen on Tuesday."], "dager")
    print(result.leakages[0], result.examples[0].guess)
    ```
    """
    held = tuple(texts)
    if not held:
        raise DataError("Expected texts to attack, got none.")
    chosen = attack
    if isinstance(chosen, str):
        if ATTACKS.owns(chosen) or chosen not in ATTACKS:
            one_of("attack", chosen, [name for name, entry in ATTACKS.items() if entry.sees == "gradient"])
        chosen = attack_of(chosen, settings)
    elif settings:
        raise invalid("settings", dict(settings), "left out where an attack is given", "Set them in the attack.")
    own, corpus = wrapped(model, tokenizer, held, labels)
    if max_length is not None:
        own.max_length = min(own.max_length, max_length)
    if protect is not None:
        once = Conditions(own, batch_size, batch_size, batch_size, steps=1, epochs=1.0, delta=delta)
        protect = of_one_origin(protect, protect.resolve(once))
    scene = Scene(own, corpus, tuple(public), f"the given {type(base_of(model)).__name__}")
    distinct = scene.count_distinct()
    if distinct < whole("batch_size", batch_size):
        raise invalid("batch_size", batch_size, f"at most {distinct}", "There are no more different texts.")
    request = AttackRequest(
        chosen,
        protect,
        name=chosen.name,
        examples=distinct // batch_size * batch_size,
        batch_size=batch_size,
        seconds=seconds,
        delta=delta,
        metrics=tuple(metrics),
        seed=seed,
        noise_seed=noise_seed,
        candidates=candidates,
    )
    with evaluating(own):
        return attack_once(request, scene)


def wrapped(
    model: Any, tokenizer: Any, texts: tuple[str, ...], labels: Sequence[Any] | None
) -> tuple[TextModel, Corpus]:
    """Return a model as discreet has it, and the texts with their labels; other kinds are rejected by name."""
    corpus = Corpus("texts", texts)
    if isinstance(model, TextModel):
        return model, _labelled(corpus, model, labels)
    name = type(base_of(model)).__name__
    if name.endswith(_CAUSAL):
        language_model = LanguageModel.from_transformers(base_of(model), tokenizer)
        return language_model, corpus
    if name.endswith("ForSequenceClassification"):
        classifier = Classifier.from_transformers(model, tokenizer)
        return classifier, _labelled(corpus, classifier, labels)
    if name.endswith("ForTokenClassification"):
        numbers = tuple(range(len(texts)))
        found = TokenClassifier(model, tokenizer, labels)
        names = tuple(map(str, range(max(2, len(texts)))))
        return found, replace(corpus, labels=numbers, label_names=names)
    raise UnsupportedError(
        f"Expected a model for sequence classification, token classification or causal language modelling, got {name}. "
        "Load it with AutoModelForSequenceClassification, AutoModelForTokenClassification or AutoModelForCausalLM."
    )


def _labelled(corpus: Corpus, model: TextModel, labels: Sequence[Any] | None) -> Corpus:
    """Return texts with labels as the model has them: class numbers or names, or scores."""
    if model.task.has_scores:
        return replace(corpus, scores=tuple(float(value) for value in labels or (0.0,) * len(corpus)))
    if not model.task.has_classes:
        return corpus
    names = model.label_names
    values = labels if labels is not None else (0,) * len(corpus)
    numbers = tuple(
        names.index(one_of("labels", value, names)) if isinstance(value, str) else value for value in values
    )
    return replace(corpus, labels=tuple(map(int, numbers)), label_names=names)
