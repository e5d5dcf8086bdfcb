"""What a tokenizer makes of a text: which characters it does not know, and how it spells the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from discreet.core.errors import Message, setting
from discreet.core.randomness import Rng

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORTH_SAYING = 0.01  # a share of unknown tokens below which nothing is said
_TEXTS = 1000  # looked at for a share
_CHARACTERS = 4000  # of each of them


def unknown_share(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> float:
    """Return the share of tokens that stand for characters the tokenizer does not know, as [UNK] does.

    Of many texts a thousand are looked at, and of a long one its beginning. A word is one token whatever
    its length, so the share of unknown characters may be larger.

    Guarantee: none; the share is computed from private texts and is for their owner.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or not texts:
        return 0.0
    rows = range(len(texts)) if len(texts) <= _TEXTS else Rng(0).permutation(len(texts))[:_TEXTS].tolist()
    some = [texts[row][:_CHARACTERS] for row in rows]
    tokens = tokenizer(some, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    total = sum(map(len, tokens))
    return sum(row.count(unknown) for row in tokens) / total if total else 0.0


def unknown_words(share: float, encoder: str) -> Message | None:
    """Return what to say of a share of unknown tokens, or None where it is too small to matter.

    >>> unknown_words(0.001, "minilm") is None
    True
    """
    if share < WORTH_SAYING:
        return None
    percent = "less than all" if 0.995 <= share < 1 else f"{share:.0%}"
    return Message(
        f"{percent} of the tokens are unknown to {encoder}: it sees [UNK] in place of those characters, learns nothing "
        f"from them, and no attack can read them. Choose an encoder for this language or script ({setting('model')})."
    )


def pieces(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None = None) -> list[str]:
    """Return the tokens of a text, with what was written in place of those that stand for unknown characters."""
    ids, spans = _encoded(tokenizer, text, max_length)
    tokens: list[str] = tokenizer.convert_ids_to_tokens(ids)
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return tokens
    if spans is None:  # a slow tokenizer does not say where its tokens stand
        return text.split()
    return [text[a:b] if one == unknown else token for one, token, (a, b) in zip(ids, tokens, spans, strict=True)]


def spelled(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None = None) -> str:
    """Return a text as the tokenizer spells it, perhaps without case or accents, cut where the model cuts.

    Characters it does not know stay as they were written: who reads the tokens alone has not read those.
    """
    ids, spans = _encoded(tokenizer, text, max_length)
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    if spans is None:
        return text
    found: list[str] = []
    run: list[int] = []
    for one, (a, b) in zip(ids, spans, strict=True):
        if one != unknown:
            run.append(one)
            continue
        found += [str(tokenizer.decode(run, skip_special_tokens=True)), text[a:b]]
        run = []
    found.append(str(tokenizer.decode(run, skip_special_tokens=True)))
    return " ".join(part.strip() for part in found if part.strip())


def written(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int) -> str:
    """Return what was written, as far as a model reads that cuts texts to a number of tokens."""
    ids, spans = _encoded(tokenizer, text, max_length)
    if spans is None or len(ids) + tokenizer.num_special_tokens_to_add() < max_length:
        return text
    return text[: max((end for _, end in spans), default=0)]


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None
) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Return the tokens of a text without those a model adds, and where in the text each of them stands."""
    limit = None if max_length is None else max(1, max_length - tokenizer.num_special_tokens_to_add())
    found = tokenizer(
        text,
        add_special_tokens=False,
        truncation=limit is not None,
        max_length=limit,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    return list(found["input_ids"]), found.get("offset_mapping")
