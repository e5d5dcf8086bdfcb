"""Batches: a corpus as tokens or as sentence vectors, on the device of the training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.errors import DataError, whole
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Numbers = npt.NDArray[np.int64]


# Resolution of the grid of widths, in steps per doubling, and the smallest width. On a CPU the cost of a part is about
# that of its tokens; on a GPU a part costs at least as much as ten thousand tokens, so there are few shapes.
_STEPS = {"cpu": 8, "cuda": 1}


_LEAST_WIDTH = {"cpu": 4, "cuda": 16}


# Tokens of a part on a CPU: a larger part is not faster, and wastes more on padding.
_CPU_TOKENS = (256, 512)


# Tokens of a part on a GPU: a larger part is not faster, and a smaller one is hardly faster than one of 8,192 tokens.
# Notes of 391 patients, 64 of them expected in a batch, are read in 4.5 parts instead of 9.5 with this lower limit.
MOST_TOKENS = 1 << 17


_LEAST_TOKENS = 1 << 13
_LEAST_CAPTURED_TOKENS = 1 << 12


@dataclass(frozen=True)
class Part:
    """Units of one shape: the indices of their rows, -1 for padding rows, and the number of real units."""

    rows: Numbers
    units: int
    rows_each: int
    width: int
    real: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Units, rows of each, and padded width."""
        return self.units, self.rows_each, self.width


@dataclass(frozen=True)
class Shapes:
    """Number of rows of a part at each width of a public grid.

    >>> shapes = Shapes.of("cpu", max_length=128, expected_units=256)
    >>> [shapes.width_of(length) for length in (1, 12, 33, 127)]
    [4, 12, 36, 128]
    >>> shapes.units_of(1, 64), shapes.units_of(3, 64), shapes.units_of(100, 64)
    (8, 2, 1)
    """

    device: str
    max_length: int
    rows: tuple[tuple[int, int], ...]  # (width, rows of a part), by width

    @classmethod
    def of(cls, device: str, max_length: int, expected_units: int, *, captured: bool = False) -> Shapes:
        """Return the shapes for a device, the maximum length of a text, and the expected number of units per batch.

        `captured` is whether parts are replayed as CUDA graphs, of which a small one costs little.
        """
        whole("expected_units", expected_units)
        widths = sorted({_rounded_up(n, _STEPS[device], _LEAST_WIDTH[device]) for n in range(1, max_length + 1)})
        widths = [*(width for width in widths if width < max_length), max_length]
        rows = [(width, _rows_at(device, width, expected_units)) for width in widths]
        if captured:
            rows = [(width, _captured_rows(width, max_length, expected_units)) for width in widths]
        return cls(device, max_length, tuple(rows))

    def width_of(self, length: int) -> int:
        """Return the padded width of a unit whose longest row has `length` tokens."""
        width = _rounded_up(max(1, length), _STEPS[self.device], _LEAST_WIDTH[self.device])
        return min(width, self.max_length)

    def rows_of(self, rows: int) -> int:
        """Return the padded number of rows of a unit with `rows` rows."""
        return _rounded_up(rows, min(4, _STEPS[self.device]), 1)

    def units_of(self, rows_each: int, width: int) -> int:
        """Return the number of units of a part, for a number of rows per unit and a width."""
        return max(1, dict(self.rows)[width] // rows_each)

    def grid(self, most_rows: int | None = None) -> set[tuple[int, int, int]]:
        """Return the shapes of all parts of several units: units, rows of each, and padded width.

        `most_rows` is the largest number of rows of a unit, if that is public. A part of a single unit needs no test.

        >>> sorted(Shapes.of("cuda", max_length=32, expected_units=4).at_most({16: 4, 32: 2}).grid())
        [(2, 1, 32), (2, 2, 16), (4, 1, 16)]
        """
        shapes = set()
        for width, _ in self.rows:
            each = self.rows_of(1)
            while (units := self.units_of(each, width)) > 1 and (most_rows is None or each <= self.rows_of(most_rows)):
                shapes.add((units, each, width))
                each = self.rows_of(each + 1)
        return shapes

    def at_most(self, rows: dict[int, int]) -> Shapes:
        """Return the same shapes with at most `rows[width]` rows for each width, but at least one."""
        return replace(self, rows=tuple((w, max(1, min(r, rows.get(w, r)))) for w, r in self.rows))

    def halved(self) -> Shapes | None:
        """Return the shapes with half as many rows in each, or None if none can be halved."""
        if all(rows == 1 for _, rows in self.rows):
            return None
        return replace(self, rows=tuple((width, max(1, rows // 2)) for width, rows in self.rows))

    def parts(self, rows: Numbers, starts: Numbers, lengths: Numbers) -> Iterator[Part]:
        """Yield the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`.

        `lengths` are the numbers of tokens of all rows of the corpus. Units of one shape are grouped in their order; a
        unit is never divided.
        """
        counts = np.diff(starts)
        if not len(counts):
            return
        longest = np.maximum.reduceat(lengths[rows], starts[:-1])
        kinds = _looked_up(longest, self.width_of), _looked_up(counts, self.rows_of)
        for width, each in sorted(set(zip(*(kind.tolist() for kind in kinds), strict=True)), reverse=True):
            size = self.units_of(each, width)
            members = np.flatnonzero((kinds[0] == width) & (kinds[1] == each))
            for start in range(0, len(members), size):
                chosen = members[start : start + size]
                places = starts[chosen][:, None] + np.arange(each)
                filled = np.full((size, each), -1, dtype=np.int64)
                own = places < starts[chosen + 1][:, None]
                filled[: len(chosen)] = np.where(own, rows[np.where(own, places, 0)], -1)
                yield Part(filled.reshape(-1), size, each, width, len(chosen))


def _looked_up(values: Numbers, function: Callable[[int], int]) -> Numbers:
    """Return a function of each value, which is called once for values that are equal."""
    distinct, where = np.unique(values, return_inverse=True)
    return np.array([function(int(value)) for value in distinct], dtype=np.int64)[where]


def _rounded_up(value: int, steps: int, least: int) -> int:
    """Return the next number of a grid with `steps` steps per doubling, in multiples of `least`.

    >>> [_rounded_up(value, 8, 4) for value in (3, 31, 33, 65)], [_rounded_up(value, 1, 16) for value in (3, 33)]
    ([4, 32, 36, 72], [16, 64])
    """
    power = 1 << (max(value - 1, 1).bit_length() - 1)
    step = max(least, power // steps)
    return -(-value // step) * step


def _rows_at(device: str, width: int, expected_units: int) -> int:
    if device == "cpu":
        tokens = min(max(expected_units, _CPU_TOKENS[0]), _CPU_TOKENS[1])
        multiple = 8 if width < 128 else 4 if width < 256 else 2
        return max(multiple, tokens // width // multiple * multiple)
    # Two parts if all units have this width, with a margin for the varying size of a Poisson batch.
    rows = math.ceil((expected_units + 4 * math.sqrt(expected_units)) / 2 / 8) * 8
    least = _LEAST_TOKENS // width if width > 1 else 1  # vectors of a frozen encoder have width 1, and are cheap
    return max(1, min(max(rows, least), MOST_TOKENS // width))


def _captured_rows(width: int, max_length: int, expected_units: int) -> int:
    """Return the rows of a part that is replayed as a graph.

    Texts that are truncated have the largest width, and may be all texts of a batch: its parts together are a little
    larger than a batch, of which one in forty needs one more. How many texts have another width is not public. On
    an H200 a part of MiniLM takes 1.8 ms and 0.4 ms for every 1,024 tokens.

    >>> _captured_rows(64, 64, 256), _captured_rows(64, 512, 256), _captured_rows(16, 512, 4096)
    (288, 64, 1024)
    """
    most = expected_units + 2 * math.sqrt(expected_units)
    if width == max_length:
        return math.ceil(most / math.ceil(most * width / MOST_TOKENS) / 8) * 8
    tokens = max(_LEAST_CAPTURED_TOKENS, 4 * expected_units)
    return min(math.ceil(most / 8) * 8, max(8, tokens // width // 8 * 8))


Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

# A tokenizer needs over 100 bytes per character, so it gets a bounded number of characters at once.
_CHARACTERS_AT_ONCE = 1 << 20
_CHARACTERS_A_TOKEN, _MOST_CHARACTERS_A_TOKEN = 16, 1024
_LEAST_CHARACTERS = 1 << 12  # a truncated word is still longer than the longest that WordPiece splits
_SPARE_TOKENS = 64


@dataclass(frozen=True)
class Batch:
    """Model inputs and targets of some rows."""

    inputs: Mapping[str, Tensor]
    targets: Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)

    def slice(self, start: int, end: int) -> Batch:
        """Return a range of the examples, for gradient accumulation."""
        return Batch({name: value[start:end] for name, value in self.inputs.items()}, self.targets[start:end])


@dataclass(frozen=True)
class Tokens:
    """A tokenized corpus, padded once; batches are trimmed to their longest row."""

    columns: Mapping[str, Tensor] = field(repr=False)
    lengths: Rows = field(repr=False)
    targets: Tensor = field(repr=False)
    truncated: int
    pad_to: int = 1
    pad_id: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def batch(self, rows: Rows) -> Batch:
        """Return these rows, padded to their longest, rounded up to a multiple of `pad_to`."""
        longest = int(self.lengths[rows].max(initial=1))
        width = min(-(-longest // self.pad_to) * self.pad_to, self.columns["input_ids"].shape[1])
        where = torch.from_numpy(rows).to(self.targets.device, non_blocking=True)
        inputs = {name: column[where, :width].long() for name, column in self.columns.items()}
        return Batch(inputs, self.targets[where])

    def part(self, rows: Rows, width: int) -> Batch:
        """Return these rows, padded to exactly this width; -1 is a row of padding with one token.

        No row may be longer than the width.
        """
        where, empty = _places(rows, self.targets.device)
        inputs = {}
        for name, column in self.columns.items():
            fill = self.pad_id if name == "input_ids" else 0
            values = column[where, :width].long()
            values = torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
            inputs[name] = values.masked_fill(empty[:, None], fill)
        inputs["attention_mask"][:, 0] = 1
        return Batch(inputs, _filled(self.targets[where], empty))

    def made_up(self, count: int, width: int, vocabulary: int, classes: int, rng: Rng, *, padded: bool = True) -> Batch:
        """Return random rows of 1 to `width` tokens, or of `width` tokens; they depend only on their number.

        They replace private rows when a model is tested.
        """
        source = rng.numpy("Tokens.made_up")
        lengths = source.integers(1 if padded else width, width + 1, size=count)
        real = torch.from_numpy(np.arange(width) < lengths[:, None]).long()
        ids = torch.from_numpy(source.integers(0, vocabulary, size=(count, width)))
        columns = {"input_ids": ids * real, "attention_mask": real}
        inputs = {name: columns.get(name, torch.zeros_like(real)).to(self.targets.device) for name in self.columns}
        return Batch(inputs, _made_up_targets(self.targets, count, classes, source))


@dataclass(frozen=True)
class Vectors:
    """A corpus as one vector per text, from a frozen encoder.

    `steady` is whether each vector depends only on its text, bit by bit, as tested with generated texts.
    """

    vectors: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    truncated: int = 0
    steady: bool = True

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.targets)

    def batch(self, rows: Rows) -> Batch:
        """Return the vectors of these rows."""
        where = torch.from_numpy(rows).to(self.targets.device, non_blocking=True)
        return Batch({"vectors": self.vectors[where]}, self.targets[where])

    def take(self, rows: Rows) -> Vectors:
        """Return these rows as a corpus of their own."""
        batch = self.batch(rows)
        return Vectors(batch.inputs["vectors"], batch.targets, steady=self.steady)

    def part(self, rows: Rows, width: int) -> Batch:
        """Return the vectors of these rows; -1 is a vector of zeros; `width` is ignored."""
        where, empty = _places(rows, self.targets.device)
        return Batch({"vectors": _filled(self.vectors[where], empty)}, _filled(self.targets[where], empty))

    def made_up(self, count: int, width: int, vocabulary: int, classes: int, rng: Rng, *, padded: bool = True) -> Batch:
        """Return random vectors, which depend only on their number; `width` and `vocabulary` are ignored."""
        source = rng.numpy("Vectors.made_up")
        vectors = torch.from_numpy(source.standard_normal((count, *self.vectors.shape[1:]), dtype=np.float32))
        targets = _made_up_targets(self.targets, count, classes, source)
        return Batch({"vectors": vectors.to(self.vectors.device, self.vectors.dtype)}, targets)


def _places(rows: Rows, device: torch.device) -> tuple[Tensor, Tensor]:
    where = torch.from_numpy(rows).to(device, non_blocking=True)
    return where.clamp_min(0), where < 0


def _filled(values: Tensor, empty: Tensor) -> Tensor:
    return values.masked_fill(empty.view(-1, *(1 for _ in values.shape[1:])), 0)


def _made_up_targets(like: Tensor, count: int, classes: int, source: np.random.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.from_numpy(source.random((count, *like.shape[1:]))).to(like.device, like.dtype)
    return torch.from_numpy(source.integers(0, max(classes, 1), size=count)).to(like.device)


def targets_of(corpus: Corpus, device: torch.device | str = "cpu") -> Tensor:
    """Return labels or scores as a tensor; zeros for a corpus without either."""
    if corpus.labels is None and corpus.scores is None:
        return torch.zeros(len(corpus), dtype=torch.int64, device=device)
    if corpus.task.has_scores:
        return torch.tensor(corpus.scores, dtype=torch.float32, device=device)
    return torch.tensor(corpus.labels, dtype=torch.int64, device=device)


class Reader(Protocol):
    """What decides which tokens a model reads of a text."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""

    @property
    def max_length(self) -> int:
        """The length of the longest text in tokens."""

    @property
    def device(self) -> torch.device:
        """Where tokens are kept."""

    @property
    def start(self) -> int | None:
        """The token before every text, where the tokenizer adds none."""

    @property
    def end(self) -> int | None:
        """The token after every text, where the tokenizer adds none."""


def tokens_for(model: Reader, corpus: Corpus) -> Tokens:
    """Return a corpus as the tokens that a model reads: with its start and end tokens around each text.

    A text that is truncated to the maximum length gets no end token.

    Guarantee: none, the tokens are the private text.
    """
    before = [] if model.start is None else [model.start]
    tokens = tokenise(corpus, model.tokenizer, model.max_length - len(before), model.device)
    if not before and model.end is None:
        return tokens
    after = [] if model.end is None else [model.end]
    ids = tokens.columns["input_ids"].cpu().numpy()
    framed = [
        np.array([*before, *row[:length], *after][: model.max_length], dtype=np.int32)
        for row, length in zip(ids, tokens.lengths.tolist(), strict=True)
    ]
    columns, lengths, _ = _padded_columns(framed, model.max_length, tokens.pad_to, tokens.pad_id, model.device)
    columns |= {name: torch.zeros_like(columns["input_ids"]) for name in tokens.columns if name not in columns}
    return dataclasses.replace(tokens, columns=columns, lengths=lengths)


def tokenise(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int, device: torch.device | str = "cpu"
) -> Tokens:
    """Tokenize a corpus on a device; count the texts that are truncated.

    A long text is shortened before it is tokenized, so that memory and time are bounded; its tokens stay the same.

    Guarantee: none, the tokens are the private text.
    """
    ids, types, truncated = _encode(corpus, tokenizer, max_length)
    pad_to = 8 if torch.device(device).type == "cuda" else 1
    if tokenizer.pad_token_id is None:
        raise DataError(
            "Expected a tokenizer with a padding token. Set tokenizer.pad_token, for example to tokenizer.eos_token."
        )
    pad_id = int(tokenizer.pad_token_id)
    columns, lengths, real = _padded_columns(ids, max_length, pad_to, pad_id, device)
    if types is not None:
        columns["token_type_ids"] = _padded(types, real, 0, device)
    return Tokens(columns, lengths, targets_of(corpus, device), truncated, pad_to, pad_id)


def _padded_columns(
    rows: list[Ids], max_length: int, pad_to: int, pad_id: int, device: torch.device | str
) -> tuple[dict[str, Tensor], Rows, npt.NDArray[np.bool_]]:
    """Return the padded ids of rows with their mask, the lengths of the rows, and which places are no padding."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    longest = int(lengths.max(initial=1))
    width = min(-(-longest // pad_to) * pad_to, max(max_length, longest))
    real = np.arange(width) < lengths[:, None]
    mask = torch.from_numpy(real.astype(np.int32)).to(device)
    return {"input_ids": _padded(rows, real, pad_id, device), "attention_mask": mask}, lengths, real


def _padded(rows: list[Ids], real: npt.NDArray[np.bool_], fill: int, device: torch.device | str) -> Tensor:
    array = np.full(real.shape, fill, dtype=np.int32)
    if rows:
        array[real] = np.concatenate(rows)
    return torch.from_numpy(array).to(device)


def _encode(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[Ids], list[Ids] | None, int]:
    """Return the ids and types of every row, and how many rows were truncated."""
    ids: list[Ids] = []
    types: list[Ids] = []
    truncated = 0
    for first, second, cut in _portions(corpus, tokenizer, max_length):
        encoded = tokenizer(first, second, truncation=True, max_length=max_length, return_attention_mask=False)
        rows: list[list[int]] = encoded["input_ids"]
        # Rows that the tokenizer may have truncated; those shortened before are counted below.
        full = [i for i, row in enumerate(rows) if len(row) >= max_length and not cut[i]]
        if full:
            pairs = [second[i] for i in full] if second is not None else None
            untruncated = tokenizer([first[i] for i in full], pairs, return_attention_mask=False, verbose=False)[
                "input_ids"
            ]
            truncated += sum(len(row) > max_length for row in untruncated)
        truncated += sum(cut)
        ids += [np.array(row, dtype=np.int32) for row in rows]
        types += [np.array(row, dtype=np.int32) for row in encoded.get("token_type_ids", ())]
    return ids, types or None, truncated


def _portions(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Iterator[tuple[list[str], list[str] | None, list[bool]]]:
    """Yield first and second texts, shortened, and whether they were, in portions of bounded size."""
    first: list[str] = []
    second: list[str] = []
    cut: list[bool] = []
    characters = 0
    for row, text in enumerate(corpus.texts):
        pair = "" if corpus.second is None else corpus.second[row]
        # The longer of a pair may keep one more token; if both are shortened, the longer must stay the longer.
        spares = (4 * _SPARE_TOKENS, _SPARE_TOKENS) if len(text) > len(pair) else (_SPARE_TOKENS, 4 * _SPARE_TOKENS)
        short, other = (shortened(t, tokenizer, max_length, s) for t, s in zip((text, pair), spares, strict=True))
        first.append(short)
        second.append(other)
        cut.append(len(short) < len(text) or len(other) < len(pair))
        characters += len(short) + len(other)
        if characters >= _CHARACTERS_AT_ONCE:
            yield first, None if corpus.second is None else second, cut
            first, second, cut, characters = [], [], [], 0
    if first:
        yield first, None if corpus.second is None else second, cut


def shortened(text: str, tokenizer: PreTrainedTokenizerBase, max_length: int, spare_tokens: int = _SPARE_TOKENS) -> str:
    """Return a prefix of a long text with the same first `max_length` tokens as the text; a short text is unchanged.

    The prefix is long enough to give more tokens than can be kept, with some to spare, and ends before white space if
    possible, because tokens depend on whole words. At most 1,024 characters per kept token are used, which matters only
    for endless unknown words.
    """
    size = max(_CHARACTERS_A_TOKEN * max_length, _LEAST_CHARACTERS)
    most = max(_MOST_CHARACTERS_A_TOKEN * max_length, _LEAST_CHARACTERS)
    enough = max_length + spare_tokens
    fast = bool(getattr(tokenizer, "is_fast", False))
    while size < len(text):
        prefix = text[: _cut_before(text, size)]
        encoded = tokenizer(prefix, return_attention_mask=False, return_offsets_mapping=fast, verbose=False)
        if len(encoded["input_ids"]) >= enough:
            # With far more tokens than needed, the tokenizer would create further windows of the text.
            return prefix[: _cut_after(prefix, int(encoded["offset_mapping"][enough - 1][1]))] if fast else prefix
        if size == most:
            return prefix
        size = min(4 * size, most)
    return text


def _cut_before(text: str, size: int) -> int:
    """Return where to cut: before the last white space in the second half of the first `size` characters."""
    for place in range(size, size // 2, -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    return size


def _cut_after(text: str, start: int) -> int:
    """Return where to cut: before the first white space from `start` on, or at the end."""
    return next((place for place in range(max(start, 1), len(text)) if text[place].isspace()), len(text))
