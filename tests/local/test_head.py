import numpy as np
import pytest
import torch
from torch import nn

from discreet.core.errors import DataError, ModelError
from discreet.core.task import Task
from discreet.local.head import Head
from discreet.local.server import ServerSide
from discreet.models.classifier import head as head_of


@pytest.mark.parametrize(("kind", "hidden"), [("linear", ()), ("mlp", (7, 5))])
def test_it_says_what_the_server_side_says(kind: str, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    side = ServerSide(head_of(kind, 6, 3, hidden).eval(), 6, ("a", "b", "c"))
    head = Head.of(side)
    vectors = torch.randn(40, 6) * 3
    np.testing.assert_allclose(head.values(vectors.numpy()), side.answer(vectors), atol=1e-6)
    assert [answer["label"] for answer in head.answers(vectors.numpy())] == [
        "abc"[i] for i in side.answer(vectors).argmax(1)
    ]


def test_scores_are_answered_for_regression() -> None:
    side = ServerSide(head_of("linear", 6, 1).eval(), 6, (), Task.REGRESSION)
    vectors = torch.randn(2, 6)
    found = Head.of(side).answers(vectors.numpy())
    assert [answer["score"] for answer in found] == pytest.approx(side.answer(vectors)[:, 0].tolist(), abs=1e-6)


def test_other_layers_and_other_vectors_are_refused() -> None:
    with pytest.raises(ModelError, match="GELU"):
        Head.of(ServerSide(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)), 2, ("a", "b")))
    head = Head.of(ServerSide(nn.Linear(2, 2), 2, ("a", "b")))
    for bad in ("text", [], [[1.0]], [[1.0, 2.0, 3.0]], [["a", "b"]], [[float("nan"), 1.0]], [[None, 1.0]], None):
        with pytest.raises(DataError, match="Expected"):
            head.checked(bad)
    assert head.checked([[1, 2.5]]).dtype == np.float32
