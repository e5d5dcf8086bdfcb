"""Small random models of every kind that can be clipped, and a batch for each."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.clipping import slow
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, clipped_sum

logging.getLogger("transformers").setLevel(logging.ERROR)
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "num_labels": 3,
}


@dataclass
class Case:
    """A model with a batch: `losses(rows)` runs it on those rows, or on all."""

    model: nn.Module
    losses: Callable[..., Tensor]
    rows: int


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SIZES))


def roberta() -> nn.Module:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return RobertaForSequenceClassification(RobertaConfig(**SIZES, pad_token_id=1))


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 50, "max_position_embeddings": 40}
    return DistilBertForSequenceClassification(DistilBertConfig(**sizes, num_labels=3))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 40, "num_labels": 3}
    ends = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
    return GPT2ForSequenceClassification(GPT2Config(**sizes, **ends))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=1))


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value", "dense"])
    model = get_peft_model(bert(), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # they begin at zero, where A has no gradient to compare
            nn.init.normal_(parameter, std=0.1)
    return model


class Recurrent(nn.Module):
    """A two-way recurrent network whose hidden-to-hidden layers are used once a step."""

    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=1)
        self.into = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.onward = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.norm = nn.RMSNorm(2 * width)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        ends = []
        for way in range(2):
            steps = self.into[way](x)
            hidden = cell = x.new_zeros(x.shape[0], x.shape[2])
            order = range(x.shape[1]) if way == 0 else reversed(range(x.shape[1]))
            for t in order:
                i, f, g, o = (steps[:, t] + self.onward[way](hidden)).chunk(4, 1)
                fresh = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                live = attention_mask[:, t, None].bool()
                cell = torch.where(live, fresh, cell)
                hidden = torch.where(live, o.sigmoid() * fresh.tanh(), hidden)
            ends.append(hidden)
        return self.head(self.norm(torch.cat(ends, 1)))


class TiedWords(nn.Module):
    """A language model in small: the weight of its embedding is that of its output layer."""

    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(vocabulary, width, padding_idx=1), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        scores = self.head(self.norm(x + self.hidden(x).tanh()))
        return (scores * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


MODELS = {f.__name__: f for f in (bert, roberta, distilbert, gpt2, llama, lora)} | {
    "recurrent": Recurrent,
    "tied": TiedWords,
}


def make_case(model: nn.Module, rows: int = 6, length: int = 11, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 50, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    for row in range(rows):
        end = int(torch.randint(3, length + 1, (), generator=generator))
        mask[row, end:], ids[row, end:] = 0, 1
    labels = torch.randint(0, 3, (rows,), generator=generator)
    model.eval()

    def losses(some: Tensor | slice = slice(None)) -> Tensor:
        out = model(input_ids=ids[some], attention_mask=mask[some])
        return F.cross_entropy(getattr(out, "logits", out), labels[some], reduction="none")

    return Case(model, losses, rows)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(1)
    return make_case(MODELS[request.param]())


@pytest.fixture
def bert_case() -> Case:
    torch.manual_seed(1)
    return make_case(bert())


@pytest.fixture
def case_of() -> Callable[..., Case]:
    def build(name: str, **settings: int) -> Case:
        torch.manual_seed(1)
        return make_case(MODELS[name](), **settings)

    return build


def assert_exact(
    model: nn.Module, losses: Callable[[], Tensor], units: Tensor | None = None, close: float = 1e-5
) -> None:
    """Assert that norms, gradients and clipped sums of a model equal those of the slow loop."""
    expected = slow.gradients(model, losses(), units)
    norms = torch.tensor([slow.norm(g) for g in expected])
    tape = Tape(model)
    with tape:
        values = losses()
    record = tape.backward(values, units)
    assert set(record.names) == set(expected[0])
    assert torch.allclose(record.norms().double(), norms.double(), rtol=close)
    largest = float(norms.max())
    for name, gradients in record.gradients().items():
        off = max(float((a - b[name]).abs().max()) for a, b in zip(gradients, expected, strict=True))
        assert off <= close * largest, name
    vectors = {name: torch.randn_like(g) for name, g in expected[0].items()}
    inner = torch.stack([sum((g[n].double() * vectors[n].double()).sum() for n in g) for g in expected])
    size = largest * sum(float(v.norm()) for v in vectors.values())
    assert float((record.inner(vectors).double() - inner).abs().max()) <= close * size
    assert abs(float(record.inner(vectors, unit=0)) - float(inner[0])) <= close * size
    clipped = clipped_sum(record, Flat(float(norms.median())))
    off = total = 0.0
    for name, gradient in clipped.gradients.items():
        sums = sum(f.double() * g[name].double() for f, g in zip(clipped.factors, expected, strict=True))
        off += float((gradient.double() - sums).square().sum())
        total += float(sums.square().sum())
    assert (off / total) ** 0.5 <= close
    assert (clipped.factors.double() * norms.double() <= float(norms.median())).all()


@pytest.fixture(name="assert_exact")
def _assert_exact() -> Callable[..., None]:
    return assert_exact
