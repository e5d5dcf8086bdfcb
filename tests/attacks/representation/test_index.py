import numpy as np
import pytest

from discreet.attacks.representation import index as module
from discreet.attacks.representation.index import Coarse, Index, unit


def vectors(count: int, width: int, seed: int = 0) -> np.ndarray:
    make = np.random.default_rng(seed)
    return unit(make.standard_normal((count, width)) + make.standard_normal(width))


@pytest.mark.parametrize("kind", ["one of them", "a mixture", "nothing like them", "long", "zero"])
def test_one_query_is_answered_as_if_all_vectors_were_compared(kind: str) -> None:
    rows = vectors(6000, 48)
    rows[17] = rows[4321]  # the same vector twice
    queries = {
        "one of them": rows[4320:4323],
        "a mixture": unit(rows[:3] + rows[10:13] + 0.5 * rows[20:23]),
        "nothing like them": vectors(3, 48, 9) * np.where(np.arange(48) % 2, -1, 1),
        "long": 1e4 * rows[5:8] + 1.0,
        "zero": np.zeros((3, 48)),
    }[kind]
    index = Index(rows)
    for count in (1, 5):
        found, scores = index.search(queries, count)
        _, slow = index.compare(np.ascontiguousarray(queries, dtype=np.float32), count)
        np.testing.assert_allclose(scores, slow, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            np.einsum("qcd,qd->qc", rows[found], queries), scores, rtol=1e-4, atol=1e-5
        )  # each row has the product that is said


def test_no_vector_that_the_bytes_leave_out_has_a_larger_product_than_the_bound() -> None:
    rows = np.abs(vectors(5000, 32))
    coarse = Coarse.of(rows)
    for query in unit(np.abs(vectors(20, 32, 3))) * np.linspace(0.01, 50, 20)[:, None].astype(np.float32):
        found, bound = coarse.first(query, 40)
        products = rows.astype(np.float64) @ query.astype(np.float64)
        left = np.delete(products, found)
        assert left.max() <= bound
        assert bound <= np.sort(products)[-40] + 0.2 * np.linalg.norm(query)  # and it is worth something


def test_where_the_bytes_decide_nothing_all_vectors_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = vectors(6000, 16)
    rows[:5000] = rows[0] + 1e-5 * rows[:5000]  # far closer to each other than a byte tells apart
    index = Index(rows)
    asked: list[int] = []
    real = Index.compare
    monkeypatch.setattr(Index, "compare", lambda *given: asked.append(1) or real(*given))
    _, scores = index.search(rows[:1], 3)
    assert asked == [1]
    assert scores[0, 0] == pytest.approx(float((rows @ rows[0]).max()), rel=1e-6)


def test_many_queries_and_small_indexes_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Coarse, "of", lambda rows: pytest.fail("bytes were made"))
    small, large = vectors(100, 8), vectors(5000, 8)
    assert Index(small).search(small[:2])[0].ravel().tolist() == [0, 1]
    assert Index(large).search(large[:40])[0].shape == (40, 1)
