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
    """One option: its name in Python, its type, what it means; its name on the command line if that differs.

    `panel` is its heading in the help, where that is not the one of its table.
    """

    name: str
    kind: type[Any]
    help: str
    flag: str | None = None
    panel: str | None = None


# Options of one kind of protection stand together. A panel with few long names also leaves room for what they mean.
_SGD = "Privacy: dp-sgd, dir-dp-sgd"
_MIX = "Privacy: texthide, dp-ie"
_LDP = "Privacy: ldp"
_WORDS = "Privacy: santext, santext+, word-noise"

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
    Option("epsilon", float, "Budget of the whole training for one unit; the noise is solved."),
    Option("clip_norm", float, "dp-sgd: longest gradient of a unit; dp-ie, ldp: longest vector."),
    Option("public", str, "Public DATA to mix with, or to learn a projection from."),
    Option("mechanism", str, "dp-ie: gaussian, laplace or laplace-l2; ldp: privunit, vmf or gaussian."),
    Option("labels", str, "dp-ie: public, or noisy by randomized response."),
    Option("label_epsilon", float, "dp-ie, ldp: the part of epsilon that noisy labels get."),
    Option("calibration", str, "dp-ie, ldp: sound, or paper (no bound)."),
    Option("dimension", int, "dp-ie, ldp (32): project to so many dimensions, learned from --public."),
    Option("noise_multiplier", float, "Noise over clip norm; with --epsilon, training ends at the budget.", panel=_SGD),
    Option("true_positive_rate", float, "The most any membership attack may reach, instead.", panel=_SGD),
    Option("false_positive_rate", float, "At this share of false alarms (0.01).", panel=_SGD),
    Option("clipping", str, "dp-sgd: flat, per-layer or automatic.", panel=_SGD),
    Option("kappa", float, "dir-dp-sgd: concentration.", panel=_SGD),
    Option("partition", str, "dir-dp-sgd: directions, whole or layers.", panel=_SGD),
    Option("masks", int, "texthide: masks in the pool (256); 0 is none.", panel=_MIX),
    Option("fresh_masks", bool, "texthide: a new mask for every vector.", "--fresh-masks", _MIX),
    Option("mix", int, "Sentences in a mixture: texthide 4, dp-ie 1.", panel=_MIX),
    Option("mix_cap", float, "Largest weight in a mixture.", panel=_MIX),
    Option("public_label", str, "texthide: public partners are dropped from labels, or even.", panel=_MIX),
    Option("epsilon_per_message", float, "Budget of each training sentence, instead of --epsilon.", panel=_LDP),
    Option("inference_epsilon", float, "Budget of each query; that of training if not given.", panel=_LDP),
    Option("query_dimension", int, "Numbers in a query, on the axes the head has learned (8).", panel=_LDP),
    Option("position", str, "Where the noise is, sentence or token.", panel=_LDP),
    Option("projection", str, "principal, labels (of --public), or whole.", panel=_LDP),
    Option("sampling", str, "once (each sentence sent once), fixed (a batch drawn at each step) or coins.", panel=_LDP),
    Option("queries", int, "How many queries the client's ledger allows (1000).", panel=_LDP),
    Option("epsilon_per_word", float, "Cost of one word.", panel=_WORDS),
    Option("keep_marks", bool, "Leave . , ; : ! ? where they stand.", "--keep-marks", _WORDS),
    Option("unknown", str, "Unknown words by pieces, or refuse.", panel=_WORDS),
    Option(
        "rewrite_queries", bool, "Rewrite held-out text too (yes), or not.", "--rewrite-queries/--keep-queries", _WORDS
    ),
    Option("sensitive", str, "santext+: file with sensitive words, one a line.", panel=_WORDS),
    Option("sample_others", float, "santext+: how often other words are drawn too (0.2).", panel=_WORDS),
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
        left = [p for name, p in own.parameters.items() if name not in tables]
        headed: list[inspect.Parameter] = []
        # Headings stand in the order of the tables, the command's own options of a heading before those of its table.
        for table, title in tables.values():
            headed += [p for p in left if _panel(p) == title]
            headed += [_parameter(option, title) for option in table]
        left = [p for p in left if _panel(p) not in {title for _, title in tables.values()}]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            for name, (table, _) in tables.items():
                values = {option.name: given.pop(option.name) for option in table}
                given[name] = {key: value for key, value in values.items() if value is not None}
            command(**given)

        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*left, *headed)]
        wrapper.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in every}
        return wrapper

    return decorate


def _parameter(option: Option, title: str) -> inspect.Parameter:
    names = [option.flag] if option.flag else []
    about = typer.Option(*names, help=option.help, rich_help_panel=option.panel or title)
    hint: Any = Annotated[option.kind | None, about]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def _panel(parameter: inspect.Parameter) -> str | None:
    notes = getattr(parameter.annotation, "__metadata__", ())
    return next((note.rich_help_panel for note in notes if isinstance(note, typer.models.OptionInfo)), None)
