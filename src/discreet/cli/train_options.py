"""The options of `discreet train` as tables: one line each, gathered by what they are settings of.

An option that is not given is None and is left out of what is gathered, so that whoever is asked can choose. A
protection's options are the fields of its settings, under the same names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class Option:
    """One option: its name in Python, its type, what it means, and its name on the command line if that differs."""

    name: str
    kind: type[Any]
    help: str
    flag: str | None = None


MODEL = (
    Option("encoder", str, "minilm (the default), bilstm, a folder, or a hub name.", "--model"),
    Option("train", str, "What is trained: head, pooler+head, top-N or all.", "--train"),
    Option("pooling", str, "How states become one vector: cls, mean (the default) or last."),
    Option("head", str, "linear or mlp; linear, but mlp for texthide."),
    Option("pooler", bool, "A dense layer with tanh before the head."),
    Option("embeddings", bool, "Train word vectors too; not by default under dp-sgd."),
    Option("dropout", float, "Dropout; the encoder's own, none under dp-sgd."),
    Option("max_length", int, "Cut texts to this many tokens."),
)
PRIVACY = (
    Option("epsilon", float, "Budget of the whole training; the noise is solved."),
    Option("noise_multiplier", float, "dp-sgd: noise over clip norm; with --epsilon, training ends at the budget."),
    Option("true_positive_rate", float, "dp-sgd: the most any membership attack may reach, instead."),
    Option("false_positive_rate", float, "dp-sgd: at this share of false alarms (0.01)."),
    Option("clip_norm", float, "dp-sgd: longest gradient of a unit; dp-ie, ldp: longest vector."),
    Option("clipping", str, "dp-sgd: flat, per-layer or automatic."),
    Option("kappa", float, "dir-dp-sgd: concentration."),
    Option("partition", str, "dir-dp-sgd: directions, whole or layers."),
    Option("masks", int, "texthide: masks in the pool (256); 0 is none."),
    Option("fresh_masks", bool, "texthide: a new mask for every vector."),
    Option("mix", int, "texthide (4), dp-ie (1): sentences in a mixture."),
    Option("mix_cap", float, "texthide, dp-ie: largest weight in a mixture."),
    Option("public", str, "Public DATA to mix with, or to learn a projection from."),
    Option("mechanism", str, "dp-ie: gaussian, laplace or laplace-l2; ldp: privunit, vmf or gaussian."),
    Option("labels", str, "dp-ie: public, or noisy by randomized response."),
    Option("label_epsilon", float, "dp-ie, ldp: the part of epsilon that noisy labels get."),
    Option("calibration", str, "dp-ie, ldp: sound, or paper (no bound)."),
    Option("dimension", int, "dp-ie, ldp (32): project to so many dimensions, learned from --public."),
    Option("inference_epsilon", float, "ldp: budget of each query; that of training if not given."),
    Option("query_dimension", int, "ldp: numbers in a query, on the axes the head has learned (8)."),
    Option("position", str, "ldp: where the noise is, sentence or token."),
    Option("projection", str, "ldp: principal, labels (of --public), or whole."),
    Option("sampling", str, "ldp: once (each sentence sent once), fixed (a batch drawn at each step) or coins."),
    Option("queries", int, "ldp: how many queries the client's ledger allows (1000)."),
    Option("epsilon_per_word", float, "santext, santext+, word-noise: cost of one word."),
    Option("keep_marks", bool, "santext, santext+, word-noise: leave . , ; : ! ? where they stand."),
    Option("unknown", str, "santext, santext+, word-noise: unknown words by pieces, or refuse."),
    Option("rewrite_queries", bool, "santext, santext+, word-noise: rewrite held-out text too."),
    Option("sensitive", str, "santext+: file with sensitive words, one a line."),
    Option("sample_others", float, "santext+: how often other words are drawn too (0.2)."),
)
TRAINING = (
    Option("epochs", float, "Passes over the text; by what is trained."),
    Option("batch_size", int, "Rows, or units if private, in a batch."),
    Option("learning_rate", float, "Highest learning rate."),
    Option("head_rate", float, "How many times as fast the head learns (1)."),
    Option("warmup", float, "Share of steps in which the rate rises (0.06)."),
    Option("weight_decay", float, "Weight decay of matrices."),
    Option("optimizer", str, "adamw (the default) or sgd."),
    Option("accumulate", int, "Read a batch in this many parts."),
    Option("patience", int, "Epochs without improvement before it stops."),
    Option("precision", str, "auto (bf16 on a GPU), float32 or bf16."),
)


def gathering(**tables: tuple[tuple[Option, ...], str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of some tables, and hands it what was given as dicts.

    Each keyword is the name of an argument of the command, with its table and the heading it has in the help.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [p for name, p in own.parameters.items() if name not in tables]
        added = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_hint(option, title)
            )
            for table, title in tables.values()
            for option in table
        ]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            for name, (table, _) in tables.items():
                values = {option.name: given.pop(option.name) for option in table}
                given[name] = {key: value for key, value in values.items() if value is not None}
            command(**given)

        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*kept, *added)]
        wrapper.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in every}
        return wrapper

    return decorate


def _hint(option: Option, title: str) -> Any:
    names = [option.flag] if option.flag else []
    return Annotated[option.kind | None, typer.Option(*names, help=option.help, rich_help_panel=title)]
