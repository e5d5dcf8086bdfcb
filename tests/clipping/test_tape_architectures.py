"""Models of transformers, with all parameters trained and with LoRA, against the slow loop."""

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, check_independent, clipped_sum
from discreet.clipping.slots import Tied

# transformers scripts functions of DeBERTa-v2 when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

ROWS, LENGTH, VOCABULARY = 5, 7, 40
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GENERATION = {**COMMON, "tie_word_embeddings": True}
DECODER = {**GENERATION, "num_key_value_heads": 1, "head_dim": 8}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
DEBERTA = {
    **COMMON,
    "relative_attention": True,
    "position_buckets": 4,
    "max_relative_positions": 8,
    "pos_att_type": ["c2p", "p2c"],
    "type_vocab_size": 0,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "pad_token_id": 1}
# name: (model class, config class, settings, modules that LoRA adapts)
MODELS: dict[str, tuple[str, str, dict[str, object], list[str]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", COMMON, ["query", "value"]),
    "bert masked": ("BertForMaskedLM", "BertConfig", COMMON, ["query", "value"]),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "pad_token_id": 1},
        ["q_lin", "v_lin"],
    ),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", COMMON, ["query", "value"]),
    "electra": (
        "ElectraForSequenceClassification",
        "ElectraConfig",
        {**COMMON, "embedding_size": 8},
        ["query", "value"],
    ),
    "albert": ("AlbertForSequenceClassification", "AlbertConfig", {**COMMON, "embedding_size": 8}, ["query", "value"]),
    "albert masked": ("AlbertForMaskedLM", "AlbertConfig", {**COMMON, "embedding_size": 8}, ["query", "value"]),
    "modernbert": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**COMMON, "cls_token_id": 2, "sep_token_id": 3},
        ["Wqkv"],
    ),
    "deberta-v2": ("DebertaV2ForSequenceClassification", "DebertaV2Config", DEBERTA, ["query_proj", "value_proj"]),
    "deberta-v2 shared": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {**DEBERTA, "share_att_key": True, "conv_kernel_size": 3, "conv_act": "gelu"},
        ["query_proj", "value_proj"],
    ),
    "t5 encoder": ("T5ForTokenClassification", "T5Config", T5, ["q", "v"]),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, ["q", "v"]),
    "t5 untied": ("T5ForConditionalGeneration", "T5Config", {**T5, "tie_word_embeddings": False}, ["q", "v"]),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, ["c_attn"]),
    "gpt2 classifier": ("GPT2ForSequenceClassification", "GPT2Config", GPT2, ["c_attn"]),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, ["q_proj", "v_proj"]),
    "llama classifier": ("LlamaForSequenceClassification", "LlamaConfig", DECODER, ["q_proj", "v_proj"]),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, ["q_proj", "v_proj"]),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", DECODER, ["q_proj", "v_proj"]),
}
TIED = {"bert masked", "albert masked", "t5", "gpt2", "llama", "qwen2", "gemma"}
UNITS = [None, torch.tensor([0, 1, 0, 2, 2])]


def build(name: str, lora: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model_class, config_class, settings, modules = MODELS[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**settings))
    if lora:
        from peft import LoraConfig, get_peft_model

        transposed = "gpt2" in name
        model = get_peft_model(model, LoraConfig(r=2, target_modules=modules, fan_in_fan_out=transposed))
    for parameter in model.parameters():  # zeros and ones, as of LoRA's B and of norms, would hide faults
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def batch_losses(model: nn.Module) -> Callable[..., Tensor]:
    """Return the losses of a padded batch, or of some of its rows: one label for each row or for each token."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, VOCABULARY, (ROWS, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((7, 3, 6, 7, 4)):
        mask[row, length:], ids[row, length:] = 0, 1

    def losses(some: Tensor | slice = slice(None)) -> Tensor:
        arguments = {"input_ids": ids[some], "attention_mask": mask[some]}
        if model.config.is_encoder_decoder:
            arguments["decoder_input_ids"] = ids[some].flip(1)
        logits = model(**arguments).logits
        if logits.dim() == 2:
            return F.cross_entropy(logits, ids[some][:, 0] % logits.shape[1], reduction="none")
        each = F.cross_entropy(logits.mT, ids[some] % logits.shape[-1], reduction="none")
        return (each * mask[some]).sum(1)

    return losses


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
@pytest.mark.parametrize("name", MODELS)
def test_all_parameters(assert_exact, name: str, units: Tensor | None) -> None:
    model = build(name)
    assert_exact(model, batch_losses(model), units)


@pytest.mark.parametrize("name", MODELS)
def test_lora(assert_exact, name: str) -> None:
    pytest.importorskip("peft")
    model = build(name, lora=True)
    assert_exact(model, batch_losses(model))


@pytest.mark.parametrize("name", sorted(TIED))
def test_tied_embeddings_are_one_parameter(name: str) -> None:
    model = build(name)
    tape = Tape(model)
    with tape:
        losses = batch_losses(model)()
    record = tape.backward(losses)
    assert len(record.names) == len(list(model.parameters()))
    (slot,) = (slot for slot in record.slots if isinstance(slot, Tied))
    assert slot.name == next(n for n, p in model.named_parameters() if p is model.get_input_embeddings().weight)
    # A per-layer clip bounds the sum of both uses once.
    norms = record.layer_norms()[slot.layer]
    total = clipped_sum(record, Flat(0.5 * float(norms.min())))
    assert total.gradients[slot.name].shape == slot.shape


@pytest.mark.parametrize("name", ["deberta-v2", "t5", "albert masked"])
def test_no_row_depends_on_another(name: str) -> None:
    model = build(name)
    check_independent(Tape(model), batch_losses(model), ROWS)
