"""Language models: they predict hidden or following tokens of a text instead of a class."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import Message, ModelError, first_line, invalid, non_negative, one_of, probability, setting
from discreet.core.errors import whole as at_least
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.models.base import TextModel, choose_trainable, evaluating, set_dropout
from discreet.models.encoder import Encoder, assemble, load_encoder, quiet, safetensors_of
from discreet.models.settings import ModelSettings
from discreet.models.smollm2 import SMOLLM2, smollm2_folder

OBJECTIVES = ("masked", "next")
LONGEST = 512  # tokens of a text where nothing is asked for: causal models take thousands, and memory grows with them
_VECTORS_AT_ONCE = 4096  # compared with the whole vocabulary together
_PROBE = 4  # tokens with which a causal model is tried
_ROUNDING = 100  # units in the last place by which two computations of one score may differ


class LanguageModel(TextModel):
    """A transformer and a linear map from each state to scores of all tokens, with one loss for each text.

    `next` asks at every position for the token that follows; `masked` hides a random share of a text's tokens behind
    the mask token and asks for them. A text's loss is the mean over the tokens asked for. A causal model (`load`,
    `from_transformers`) brings its own map, which may be one weight with its word vectors; an encoder (`open`) gets a
    map that begins as a copy of its word vectors. Which tokens are hidden is drawn from `rng`, anew at every call.

    Differs: what is hidden is always replaced by the mask token, while BERT leaves or exchanges a fifth of it.
    """

    network: Any  # the model of transformers whose parts these are, for `generate`; None over an encoder

    def __init__(
        self,
        encoder: Encoder,
        settings: ModelSettings | None = None,
        *,
        rng: Rng,
        objective: str = "masked",
        rate: float = 0.15,
        network: Any = None,
    ) -> None:
        """Put the parts together."""
        settings = settings or ModelSettings()
        if settings.frozen:
            remedy = f"A language model has no head of its own to train; use {setting('train', 'lora')}."
            raise invalid("train", settings.train, "all, top-N or lora for a language model", remedy)
        super().__init__(encoder, settings, Task.LM)
        self.objective = one_of("objective", objective, OBJECTIVES)
        self.unread = int(objective == "next")
        self.rate = probability("rate", rate)
        if objective == "masked" and self.tokenizer.mask_token_id is None:
            raise ModelError("Expected a tokenizer with a mask token for objective='masked'. Use objective='next'.")
        if not hasattr(self.encoder, "get_input_embeddings"):
            raise ModelError(f"Expected an encoder of transformers, got {type(self.encoder).__name__}.")
        words = self.encoder.get_input_embeddings().weight  # type: ignore[operator]
        object.__setattr__(self, "network", network)  # its parts are registered once, as encoder and head
        if network is None:
            self.head = nn.Linear(self.width, words.shape[0])
            self.head.weight.data.copy_(words.detach())
            self.head.bias.data.zero_()
        else:
            self.head = network.get_output_embeddings()
        self.tied = self.head.weight is words
        if settings.dropout is not None:
            set_dropout(self, settings.dropout)
        choose_trainable(self.encoder, settings, rng)
        if not self.tied:
            self.head.requires_grad_(network is None or settings.train == "all")
        self._hidden = rng.fork("hidden tokens")

    @classmethod
    def open(
        cls,
        encoder: str = "minilm",
        settings: ModelSettings | None = None,
        *,
        rng: Rng,
        objective: str = "masked",
        rate: float = 0.15,
    ) -> LanguageModel:
        """Return a language model over an encoder by name or folder."""
        return cls(load_encoder(encoder, rng=rng), settings, rng=rng, objective=objective, rate=rate)

    @classmethod
    def load(cls, settings: ModelSettings, *, rng: Rng, download: bool = False) -> LanguageModel:
        """Return a causal language model: `smollm2`, a folder that transformers can open, or a hub name.

        Nothing is fetched unless `download` is true. Weights are read from safetensors only.
        """
        network, tokenizer, fingerprint = load_causal(settings.encoder, download=download)
        return cls.from_transformers(network, tokenizer, settings, rng=rng, fingerprint=fingerprint)

    @classmethod
    def from_transformers(
        cls,
        network: Any,
        tokenizer: Any,
        settings: ModelSettings | None = None,
        *,
        rng: Rng | None = None,
        fingerprint: str = "",
        framed: bool = True,
    ) -> LanguageModel:
        """Return a causal language model of transformers as one that can be trained, evaluated and attacked here.

        The weights are shared, not copied. Without settings, what is trained stays what it is: weights with
        `requires_grad`. With `framed`, every text is read between a start and an end token, so that
        the model learns where texts begin and end; without, it is read as the tokenizer has it.
        """
        flags = {weight: weight.requires_grad for weight in network.parameters()} if settings is None else {}
        settings = settings or ModelSettings(type(network).__name__)
        for name in ("pooling", "head", "pooler"):
            if getattr(settings, name) != getattr(ModelSettings, name):
                raise invalid(name, getattr(settings, name), "left out for a language model", "It has no such part.")
        _check_causal(network, tokenizer, settings.encoder)
        encoder = assemble(settings.encoder, network.base_model, tokenizer, fingerprint)
        model = cls(encoder, settings, rng=rng or Rng(0), objective="next", network=network)
        model.max_length = min(settings.max_length or LONGEST, encoder.max_length)
        for weight, trained in flags.items():
            weight.requires_grad_(trained)
        if framed:
            model.start, model.end = _frame(tokenizer)
        return model

    @property
    def remarks(self) -> tuple[str, ...]:
        """Say that tied embeddings are frozen, where all other weights are trained."""
        if not self.tied or self.settings.train != "all" or self.settings.embeddings:
            return ()
        return (
            Message(
                f"The input and the output embeddings of {self.settings.encoder} are one weight, which is frozen; all "
                f"other weights are trained. Use {setting('embeddings', True)} to train it too."
            ),
        )

    @property
    def trains_tokens(self) -> bool:
        """Whether the vector of every token is trained, on the way in and on the way out."""
        return self._word_weight.requires_grad and self._score_weight.requires_grad

    @property
    def _word_weight(self) -> Tensor:
        words: Tensor = self.encoder.get_input_embeddings().weight  # type: ignore[operator]
        return words

    @property
    def _score_weight(self) -> Tensor:
        weight: Tensor = self.head.weight  # type: ignore[assignment]
        return weight

    def add_tokens(self, names: Sequence[str], rng: Rng) -> list[int]:
        """Add tokens to a causal model, and return their numbers; their vectors are normal like those of the others.

        A name that the vocabulary has already keeps its number, gets a new vector, and is now read as one token.
        """
        if self.network is None:
            raise ModelError("Expected a causal language model to add tokens to. Use LanguageModel.load.")
        trained, scored = self._word_weight.requires_grad, self._score_weight.requires_grad
        self.tokenizer.add_tokens(list(names))
        if len(self.tokenizer) > len(self._word_weight):
            with torch.random.fork_rng(devices=[]), quiet():
                self.network.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
            self.head = self.network.get_output_embeddings()
            self._word_weight.requires_grad_(trained)
            self._score_weight.requires_grad_(scored)
        numbers = [int(number) for number in self.tokenizer.convert_tokens_to_ids(list(names))]
        others = torch.ones(len(self._word_weight), dtype=torch.bool, device=self.device)
        others[numbers] = False
        with torch.no_grad():
            for weight in [self._word_weight] if self.tied else [self._word_weight, self._score_weight]:
                usual = weight[others]
                fresh = torch.from_numpy(rng.fork("new tokens").numpy().standard_normal((len(names), weight.shape[1])))
                weight[numbers] = usual.mean(dim=0) + usual.std(dim=0) * fresh.to(weight.device, weight.dtype)
        return numbers

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the encoder's last hidden states, (batch, tokens, width)."""
        if self.network is None:
            return super().states(inputs)
        states: Tensor = self.encoder(**inputs, use_cache=False).last_hidden_state  # a cache is for generation
        return states

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return scores of all tokens at every position, (batch, tokens, vocabulary)."""
        scores: Tensor = self.head(self.states(inputs))
        return scores

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per text, the mean over the tokens asked for; labels are not used.

        Guarantee: none, a loss and its gradient depend on every token.
        """
        scores, wanted, asked = self.token_scores(inputs)
        return (token_losses(scores, wanted) * asked).sum(dim=1) / asked.sum(dim=1).clamp_min(1)

    def token_scores(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of all tokens, the right tokens, and which of these are asked for: (batch, tokens, …)."""
        real = inputs["attention_mask"].bool()
        # Word vectors that an attack tries: what follows is the word closest to each.
        ids = inputs["input_ids"] if "input_ids" in inputs else self._closest(inputs["inputs_embeds"])
        if self.objective == "next":
            return self.head(self.states(inputs)[:, :-1]), ids[:, 1:], real[:, 1:]
        asked = self._asked(ids, real)
        hidden = torch.where(asked, self.tokenizer.mask_token_id, ids)
        return self({**inputs, "input_ids": hidden}), ids, asked

    @torch.no_grad()
    def _closest(self, vectors: Tensor) -> Tensor:
        """Return the token whose word vector is closest by cosine to each vector, (batch, tokens)."""
        words = F.normalize(self.encoder.get_input_embeddings().weight, dim=-1)  # type: ignore[operator]
        flat = vectors.detach().flatten(0, 1)
        closest = [(part @ words.mT).argmax(dim=-1) for part in torch.split(flat, _VECTORS_AT_ONCE)]
        return torch.cat(closest).view(vectors.shape[:2])

    def _asked(self, ids: Tensor, real: Tensor) -> Tensor:
        """Return which tokens are hidden: each ordinary one at the rate, and at least one in every text."""
        special = torch.tensor(self.tokenizer.all_special_ids, device=ids.device)
        drawn = torch.from_numpy(self._hidden.uniform(ids.numel())).view(ids.shape).to(ids.device)
        drawn = drawn.masked_fill(~real | torch.isin(ids, special), 2.0)  # never below a rate
        least = drawn.amin(dim=1, keepdim=True)
        return ((drawn < self.rate) | (drawn == least)) & (drawn < 1)

    @torch.no_grad()
    def generate(
        self,
        prompt: str = "",
        *,
        count: int = 1,
        max_tokens: int = 64,
        temperature: float = 1.0,
        top_p: float = 1.0,
        rng: Rng,
    ) -> list[str]:
        """Return continuations of a prompt, without the prompt; a temperature of 0 takes the likeliest token.

        Guarantee: that of the model, unchanged; generation is post-processing.
        """
        at_least("count", count, 1, "It counts the texts to generate.")
        at_least("max_tokens", max_tokens, 1, "It is the largest number of tokens in a text.")
        non_negative("temperature", temperature, "0 takes the likeliest token, 1 samples from the model.")
        if not 0 < probability("top_p", top_p) <= 1:
            raise invalid("top_p", top_p, "in (0, 1]", "It is the share of the probability to sample from.")
        if self.network is None:
            raise ModelError("Expected a causal language model to generate text with. Use LanguageModel.load.")
        ids = list(self.tokenizer(prompt)["input_ids"])
        ids = ids if self.start is None else [self.start, *ids]
        if not ids:
            raise invalid("prompt", prompt, "not empty", "This model has no token that starts a text.")
        given = torch.tensor([ids], device=self.device)
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature else {}
        settings = copy.deepcopy(self.network.generation_config)
        settings.update(do_sample=False, temperature=None, top_p=None, top_k=None)  # not the defaults of its makers
        settings.update(
            **sampling,
            max_new_tokens=max_tokens,
            max_length=None,
            num_return_sequences=count if temperature else 1,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        devices = [self.device] if self.device.type == "cuda" else []
        with evaluating(self), torch.random.fork_rng(devices=devices), quiet():
            torch.manual_seed(rng.fork("generate").seed())
            rows = self.network.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
        texts = [str(self.tokenizer.decode(row[len(ids) :], skip_special_tokens=True)) for row in rows]
        return texts * (count if not temperature else 1)


def token_losses(scores: Tensor, wanted: Tensor) -> Tensor:
    """Return the cross entropy of each token in float32, (batch, tokens)."""
    return F.cross_entropy(scores.float().flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)


def load_causal(name: str, *, download: bool = False) -> tuple[Any, Any, str]:
    """Return a causal language model of transformers by name or folder, its tokenizer, and a fingerprint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, fingerprint = safetensors_of(str(smollm2_folder()) if name == SMOLLM2 else name)
    local = not download or isinstance(where, Path)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=local)
            network, about = AutoModelForCausalLM.from_pretrained(
                where, local_files_only=local, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:
        fetch = f"Fetch it with: hf download {name} (or set {setting('download', True)}). "
        raise ModelError(
            f"Expected a causal language model at {name!r} that transformers can open. "
            f"{'' if isinstance(where, Path) else fetch}{first_line(error)}"
        ) from None
    if about["missing_keys"]:
        raise ModelError(
            f"Expected all weights of {type(network).__name__} in {name!r}, but {min(about['missing_keys'])!r} is not "
            "there. It is no causal language model; choose another."
        )
    return network, tokenizer, fingerprint


def _check_causal(network: Any, tokenizer: Any, name: str) -> None:
    """Reject a model whose scores are not a linear map of its last states, or a tokenizer with tokens it does not have.

    It is tried with a few tokens; nothing private is read.
    """
    kind = type(network).__name__
    head = network.get_output_embeddings()
    if not isinstance(head, nn.Linear) or network.base_model is network:
        raise ModelError(f"Expected a causal language model with a linear output layer, got {kind} in {name!r}.")
    if len(tokenizer) > head.out_features:
        raise ModelError(
            f"Expected at most {head.out_features} tokens in the tokenizer of {name!r}, as the model has, got "
            f"{len(tokenizer)}. Call model.resize_token_embeddings(len(tokenizer)) and save it again."
        )
    ids = torch.arange(1, _PROBE + 1, device=head.weight.device).clamp_max(head.out_features - 1)[None]
    with evaluating(network), torch.no_grad():
        scores = network(input_ids=ids).logits
        parts = head(network.base_model(input_ids=ids).last_hidden_state)
        other = ids.clone()
        other[0, -1] = 0
        later = network(input_ids=other).logits
    if not _same(scores[:, :-1], later[:, :-1]):
        raise ModelError(f"Expected a causal language model, but {kind} lets a token see those after it.")
    if not _same(scores, parts):
        raise ModelError(
            f"Expected {kind} to score tokens by a linear map of its last states, found another. Models that change "
            "the scores afterwards are not supported here; use discreet.make_private with your own loss."
        )


def _same(scores: Tensor, others: Tensor) -> bool:
    far = float((scores - others).abs().max())
    return far <= min(0.05, _ROUNDING * torch.finfo(scores.dtype).eps) * float(scores.abs().max())


def _frame(tokenizer: Any) -> tuple[int | None, int | None]:
    """Return the tokens to put before and after a text, where the tokenizer does not put any there itself."""
    bare = list(tokenizer("")["input_ids"])
    end = tokenizer.eos_token_id
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else end
    return (None if bare else start), (None if end in bare[1:] else end)
