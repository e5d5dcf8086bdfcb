from collections.abc import Callable

import pytest
import torch

from discreet.attacks.encoder_layers import dissect, inputs_of, model_of
from discreet.core.errors import UnsupportedError
from discreet.core.types import Knowledge
from discreet.models.classifier import Classifier

Build = Callable[..., Classifier]


@pytest.mark.parametrize(
    ("kind", "first", "causal"),
    [("bert", 3, False), ("roberta", 3, False), ("distilbert", 3, False), ("gpt2", 1, True)],
)
def test_the_parts_of_every_family_are_found(tiny_model: Build, kind: str, first: int, causal: bool) -> None:
    model = tiny_model(kind).train()
    parts = dissect(model)
    assert model.training, "the mode of the model is left as it was"
    assert parts.causal is causal and len(parts.first) == len(parts.second) == first and len(parts.middle) == 1
    names = dict(model.named_parameters())
    for projection in (*parts.first, *parts.middle, *parts.second):
        weight = names[projection.name]
        assert weight is projection.module.weight and projection.rows(weight).shape[1] == model.width
    assert names[parts.embeddings.word_name].shape[0] == parts.embeddings.words.shape[0]
    ids = torch.tensor([[9, 7, 11, 30]])
    made = parts.embeddings.inputs(ids[0], torch.arange(4))
    torch.testing.assert_close(made, inputs_of(model, parts.first[0].module, ids)[0])


def test_word_vectors_give_the_states_of_their_tokens_with_gradients(tiny_model: Build) -> None:
    model = tiny_model("bert")
    parts = dissect(model)
    ids = torch.tensor([[9, 7, 11], [3, 3, 5]])
    vectors = parts.embeddings.words[ids].requires_grad_()
    states = inputs_of(model, parts.second[0].module, vectors)
    torch.testing.assert_close(states.detach(), inputs_of(model, parts.second[0].module, ids))
    states.sum().backward()
    assert vectors.grad is not None and float(vectors.grad.abs().max()) > 0


def test_other_models_are_refused_by_name(tiny_model: Build) -> None:
    model = tiny_model("bert")
    model.encoder = torch.nn.Linear(4, 4)
    with pytest.raises(UnsupportedError, match="at least two blocks, got 0 in Linear"):
        dissect(model)
    with pytest.raises(UnsupportedError, match="Expected a Classifier .* for DAGER, got NoneType"):
        model_of(Knowledge(), "DAGER")
