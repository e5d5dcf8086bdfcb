"""Encrypted inference: right to 1e-3, over a real socket, and whatever else is sent is rejected."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet import Rng
from discreet.core.ckks import SLOTS
from discreet.core.errors import DataError, ModelError, UnsupportedError
from discreet.core.task import Task
from discreet.local.encrypted import EncryptedClient, EncryptedHead, Packing, packed, unpacked
from discreet.local.head import Head
from discreet.local.limits import Limits
from discreet.local.remote import RemoteServer


def head_of(width: int, outputs: int, task: str = "classification") -> Head:
    rng = np.random.default_rng(outputs)
    layer = rng.normal(size=(outputs, width)).astype(np.float32), rng.normal(size=outputs).astype(np.float32)
    return Head((layer,), tuple(f"class {i}" for i in range(outputs)) if task == "classification" else (), Task(task))


@pytest.mark.parametrize(
    ("width", "outputs", "count"), [(384, 2, 1), (384, 3, 7), (768, 9, 2), (4096, 2, 1), (6, 1, 9)]
)
def test_encrypted_scores_are_those_of_the_head(width: int, outputs: int, count: int) -> None:
    head = EncryptedHead(head_of(width, outputs))
    vectors = np.random.default_rng(1).normal(size=(count, width)).astype(np.float32)
    client = EncryptedClient(head.packing)
    answers = head.answer(client.encrypt(vectors))
    weights, bias = head.head.layers[0]
    np.testing.assert_allclose(client.scores(answers, count), vectors @ weights.T + bias, atol=1e-3)
    with pytest.raises(DataError):
        client.scores(answers[1:], count)


@given(st.integers(1, SLOTS), st.integers(1, 300))
def test_vectors_fit_their_ciphertexts(width: int, outputs: int) -> None:
    packing = Packing(width, outputs)
    assert packing.rows >= 1 and packing.rows * packing.copies * width <= SLOTS
    assert packing.copies * packing.answers >= outputs
    vectors = np.random.default_rng(width).normal(size=(packing.rows + 1, width))
    placed = packing.placed(vectors)
    assert len(placed) == 2 and all(len(slots) <= SLOTS for slots in placed)


def test_the_client_sees_masked_products_and_the_sums() -> None:
    """Every answer to the same ciphertext has other products; their sums are the same."""
    head = EncryptedHead(head_of(384, 2), rng=Rng(1))
    client = EncryptedClient(head.packing)
    sent = client.encrypt(np.ones((1, 384)) / 20)
    first, second = (client.key.decrypt(head.answer(sent)[0])[:768].reshape(2, 384) for _ in range(2))
    weights, _ = head.head.layers[0]
    assert np.abs(first - second).mean() > 500  # uniform numbers of up to 1024
    np.testing.assert_allclose(first.sum(1), second.sum(1), atol=1e-3)
    products = weights / 20
    assert np.abs(np.corrcoef(first[0], products[0])[0, 1]) < 0.2


def test_heads_that_cannot_be_computed_encrypted_are_rejected() -> None:
    layer = head_of(4, 4).layers[0]
    with pytest.raises(ModelError, match="linear"):
        EncryptedHead(Head((layer, layer), ("a", "b", "c", "d")))
    with pytest.raises(ModelError, match="weights"):
        EncryptedHead(Head(((layer[0] * 1e5, layer[1]),), ("a", "b", "c", "d")))
    with pytest.raises(UnsupportedError):
        Packing(SLOTS + 1, 2)


@given(st.binary(max_size=60))
def test_other_bytes_are_no_list_of_ciphertexts(body: bytes) -> None:
    try:
        ciphertexts = unpacked(body)
    except DataError:
        return
    assert packed(ciphertexts) == body


@contextmanager
def running(limits: Limits, task: str = "classification") -> Iterator[Any]:
    from tests.local import conftest

    head = head_of(384, 3 if task == "classification" else 1, task)
    with conftest.running(head, limits, EncryptedHead(head)) as server:
        yield server


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    with running(Limits(rows=6, rate=1e6)) as found:
        yield found


def test_answers_over_a_connection(served: Any) -> None:
    remote = RemoteServer(served.url)
    about = remote.about()
    assert about.width == 384 and about.weight_norm is not None and about.max_rows == 6
    vectors = np.random.default_rng(2).normal(size=(8, 384)).astype(np.float32) / 20
    answers, traffic = remote.encrypted_answers(vectors, about)
    expected = served.head.answers(vectors)
    for answer, right in zip(answers, expected, strict=True):
        assert answer["label"] == right["label"]
        np.testing.assert_allclose(answer["probabilities"], right["probabilities"], atol=1e-3)
    assert 3 * 2e5 < traffic.sent < 3 * 3e5 and 3 * 1e5 < traffic.received < 3 * 2e5
    with pytest.raises(DataError, match="encrypted"):
        remote.answers(vectors, about)
    with pytest.raises(DataError, match="scores below"):
        remote.encrypted_answers(vectors * 1e6, about)
    assert served.lives()


def test_a_score_over_a_connection() -> None:
    with running(Limits(), "regression") as found:
        remote = RemoteServer(found.url)
        vectors = np.ones((2, 384), dtype=np.float32) / 20
        answers, _ = remote.encrypted_answers(vectors, remote.about())
        assert answers[0]["score"] == pytest.approx(found.head.answers(vectors)[0]["score"], abs=1e-3)


def post(served: Any, body: bytes, media: str = "application/octet-stream", path: str = "/v1/encrypted") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request("POST", path, body, {"content-type": media})
        response = connection.getresponse()
        reply = response.read()
        if response.status != 200:
            assert "error" in json.loads(reply)
        return response.status
    finally:
        connection.close()


def test_whatever_is_no_ciphertext_is_rejected(served: Any) -> None:
    right = EncryptedClient(Packing(384, 3)).encrypt(np.zeros((1, 384)))
    assert post(served, packed(right)) == 200
    assert post(served, packed([b"x" * 1000])) == 422
    assert post(served, b"A sentence in the clear.") == 422
    assert post(served, b"") == 422
    large = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    large.putrequest("POST", "/v1/encrypted")  # the server answers before the body is sent
    large.putheader("content-type", "application/octet-stream")
    large.putheader("content-length", str(3 * len(packed(right))))
    large.endheaders()
    assert large.getresponse().status == 413
    large.close()
    assert post(served, packed([b"x"] * 3)) == 422  # more ciphertexts than the limit
    assert post(served, packed(right)[:-1]) == 422
    assert post(served, b"{}", "application/json") == 415
    assert post(served, b'{"vectors": [[1.0]]}', "application/json", "/v1/answers") == 404
    assert served.lives()
    document = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    document.request("GET", "/openapi.json")
    assert "/v1/encrypted" in json.loads(document.getresponse().read())["paths"]
    document.close()


def test_the_rate_is_limited() -> None:
    with running(Limits(rate=0.01)) as found:
        body = packed([b"x"])
        assert [post(found, body) for _ in range(3)] == [422, 429, 429]
