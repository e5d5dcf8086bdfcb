"""A secret that is used again: two different releases never share their noise and never count as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.planned import train

from discreet.accounting.ledger import Ledger
from discreet.accounting.local_layer import Sending
from discreet.core.randomness import Rng, digest, weights_digest
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import Projection
from discreet.protections.local.release import LocalLayer
from discreet.protections.words.swap import WordSwap
from discreet.protections.words.table import WordTable
from discreet.releases.gradient import hidden_release, protected_release
from discreet.releases.representation import representation_release

ROWS, SIZE = 24, 8
KEY = b"k" * 32
SETTINGS = TrainSettings(epochs=1, batch_size=SIZE, optimizer="sgd", learning_rate=0.1, warmup=0.0, weight_decay=0.0)


@pytest.fixture
def corpus() -> Corpus:
    texts = tuple(f"the {('heart', 'knee')[i % 2]} was calm {i}" for i in range(ROWS))
    return Corpus("toy", texts, labels=tuple(i % 2 for i in range(ROWS)), label_names=("ward", "clinic"))


def turned(width: int, outputs: int, seed: int) -> Projection:
    """Return a projection that shows no difference in its repr."""
    matrix = torch.randn(outputs, width, generator=torch.Generator().manual_seed(seed))
    return Projection(torch.zeros(width), matrix, "public text")


@dataclass(frozen=True)
class Case:
    """A protection, and a number that decides what of it its repr does not show."""

    name: str
    build: Callable[[Classifier, int], Any]
    hidden: bool = False  # whether the number changes it at all


def _sgd(model: Classifier, seed: int) -> Any:
    return DPSGD(noise_multiplier=30.0, clip_norm=1.0)


def _direction(model: Classifier, seed: int) -> Any:
    return DirDPSGD.for_model(model, 5.0)


def _encoding(stored: bool) -> Callable[[Classifier, int], Any]:
    return lambda model, seed: InstanceEncoding(
        8.0, 1e-5, mix=1, stored=stored, epochs=1.0, projection=turned(model.width, 4, seed)
    )


def _local(sampling: str) -> Callable[[Classifier, int], Any]:
    def build(model: Classifier, seed: int) -> Any:
        layer = LDPLayer("gaussian", 4, 2.0, 1.0)
        drawn = ROWS if sampling == "once" else SIZE
        sending = Sending(ROWS, drawn, 1 if sampling == "once" else ROWS // SIZE, 0, sampling)
        return LocalLayer(layer, layer, turned(model.width, 4, seed), sending, label_epsilon=2.0)

    return build


def _words(model: Classifier, seed: int) -> Any:
    table = WordTable.of_encoder(model.settings.encoder)
    table = replace(table, vectors=table.vectors + 0.01 * seed) if seed else table
    return WordSwap(table, 40.0)


CASES = [
    Case("dp-sgd", _sgd),
    Case("dir-dp-sgd", _direction),
    Case("dp-ie stored", _encoding(True), True),
    Case("dp-ie live", _encoding(False), True),
    Case("ldp once", _local("once"), True),
    Case("ldp fixed", _local("fixed"), True),
    Case("santext", _words, True),
]
named = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def once(
    corpus: Corpus,
    encoder: Path,
    case: Case,
    ledger: Ledger | None,
    head: int = 1,
    hidden: int = 0,
    secret: Rng | None = None,
) -> tuple[Ledger, torch.Tensor]:
    """Train once from the one secret, and return the ledger and the update of the head."""
    model = Classifier.build(corpus, rng=Rng(head), encoder=str(encoder), train="head", dropout=0.0)
    protect = case.build(model, hidden)
    ledger = ledger or Ledger.open(None, unit=corpus.unit_name, adjacency=protect.adjacency)
    sampler = Poisson(1.0) if case.name == "dp-sgd" else None
    before = torch.cat([p.detach().flatten().clone() for p in model.head.parameters()])
    train(
        model, corpus, SETTINGS, seed=3, protect=protect, secret=secret or Rng.secret(KEY), ledger=ledger,
        sampler=sampler, delta=1e-5,
    )  # fmt: skip
    after = torch.cat([p.detach().flatten() for p in model.head.parameters()])
    return ledger, after - before if len(after) == len(before) else after


@named
def test_the_same_training_is_counted_once(case: Case, corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    ledger, first = once(corpus, tiny_encoder("bert"), case, None)
    spends = ledger.statement.spends
    _, again = once(corpus, tiny_encoder("bert"), case, ledger)
    assert ledger.statement.spends == spends and torch.equal(first, again)


@named
def test_with_a_fixed_seed_a_name_holds_the_data_and_tells_nothing_of_it(
    case: Case, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    """Whoever guesses seed and corpus cannot see in a ledger that the guess is right; other data is another spend."""
    ledger, first = once(corpus, tiny_encoder("bert"), case, None, secret=Rng(3))
    spends, names = ledger.statement.spends, set(ledger.names)
    guess, again = once(corpus, tiny_encoder("bert"), case, None, secret=Rng(3))
    assert torch.equal(first, again) and not names & set(guess.names)
    once(corpus, tiny_encoder("bert"), case, ledger, secret=Rng(3))
    assert ledger.statement.spends == spends and set(ledger.names) == names
    once(
        replace(corpus, texts=("the sharp cough", *corpus.texts[1:])), tiny_encoder("bert"), case, ledger, secret=Rng(3)
    )
    assert ledger.statement.spends == 2 * spends


@named
def test_other_starting_weights_are_another_training_with_a_bill_of_its_own(
    case: Case, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    ledger, _ = once(corpus, tiny_encoder("bert"), case, None, head=1)
    spends = ledger.statement.spends
    once(corpus, tiny_encoder("bert"), case, ledger, head=2)
    # Texts that are rewritten before anything is trained do not depend on the head: it is the same release.
    assert ledger.statement.spends == (spends if case.name == "santext" else 2 * spends)


@pytest.mark.parametrize("case", [case for case in CASES if case.hidden], ids=lambda case: case.name)
def test_what_a_protection_does_not_show_makes_another_release(
    case: Case, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    ledger, _ = once(corpus, tiny_encoder("bert"), case, None, hidden=0)
    spends = ledger.statement.spends
    once(corpus, tiny_encoder("bert"), case, ledger, hidden=1)
    assert ledger.statement.spends == 2 * spends


@named
def test_another_text_label_or_owner_makes_another_release(
    case: Case, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    ledger, _ = once(corpus, tiny_encoder("bert"), case, None)
    spends = ledger.statement.spends
    other = replace(corpus, texts=("the sharp cough", *corpus.texts[1:]))
    once(other, tiny_encoder("bert"), case, ledger)
    assert ledger.statement.spends == 2 * spends


def test_the_noise_of_two_trainings_from_one_secret_does_not_cancel(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    """The attack: both updates have the same noise, so their difference shows the clipped gradients without any."""
    one_step = replace(SETTINGS, batch_size=ROWS, learning_rate=1.0)
    updates = []
    with Ledger.open(None, unit="row", adjacency=DPSGD(1.0).adjacency) as ledger:
        for head in (1, 2):
            model = Classifier.build(corpus, rng=Rng(head), encoder=str(tiny_encoder("bert")), train="head")
            before = [p.detach().clone() for p in model.head.parameters()]
            train(
                model, corpus, one_step, seed=3, protect=DPSGD(noise_multiplier=30.0, clip_norm=1.0),
                sampler=Poisson(1.0), secret=Rng.secret(KEY), ledger=ledger, delta=1e-5,
            )  # fmt: skip
            moved = [now.detach() - was for now, was in zip(model.head.parameters(), before, strict=True)]
            updates.append(torch.cat([part.flatten() for part in moved]) * ROWS)
        assert ledger.statement.spends == 2
    # Without noise the two sums of 24 clipped gradients differ by at most 48; the noise has norm 30 sqrt(34) each.
    assert float((updates[0] - updates[1]).norm()) > 4 * 24


@pytest.mark.parametrize("kind", ["gradient", "hidden", "vectors", "stored vectors", "texts"])
def test_single_releases_of_two_batches_from_one_secret_share_no_noise(
    kind: str, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = Classifier.build(corpus, rng=Rng(1), encoder=str(tiny_encoder("bert")), train="head").eval()
    batches = (corpus.take(range(8)), corpus.take(range(8, 16)))
    table = WordTable.of_encoder(model.settings.encoder)

    def release(batch: Corpus) -> torch.Tensor:
        secret = Rng.secret(KEY)  # the same one, made anew: nothing remembers that it was used before
        if kind == "gradient":
            found = protected_release(model, batch, DPSGD(1e6, 1.0), secret, delta=1e-5).gradients
            return torch.cat([value.flatten() for value in found.values()])
        if kind == "texts":
            words = WordSwap(table, 1e-6).release(batch.texts, secret).texts  # the draw ignores the word
            return torch.tensor([table.rows[word] for text in words for word in text.split()][:40]).double()
        protect = InstanceEncoding(1e-3, 1e-5, mix=1, stored=kind == "stored vectors", epochs=1.0)
        if kind == "hidden":
            found = hidden_release(model, batch, protect, secret).gradients
            return torch.cat([value.flatten() for value in found.values()])
        return representation_release(model, batch, protect, secret, batch_size=8)[0].vectors.flatten()

    first, second = release(batches[0]), release(batches[1])
    size = min(len(first), len(second))
    first, second = first[:size] - first[:size].mean(), second[:size] - second[:size].mean()
    cosine = float(torch.dot(first, second) / first.norm() / second.norm())
    assert abs(cosine) < 0.9  # with the same noise, which outweighs everything, it is 1


def test_a_digest_sees_what_a_repr_does_not(tiny_encoder: Callable[[str], Path], corpus: Corpus) -> None:
    one, two = turned(4, 2, 0), turned(4, 2, 1)
    assert repr(one) == repr(two) and digest(one) != digest(two) and digest(one) == digest(turned(4, 2, 0))
    model = Classifier.build(corpus, rng=Rng(1), encoder=str(tiny_encoder("bert")), train="head")
    before = weights_digest(model)
    with torch.no_grad():
        model.head.weight[0, 0] += 1e-3
    assert weights_digest(model) != before
    assert digest(Rng.secret(KEY)) == digest(Rng.secret(KEY)) != digest(Rng.secret(b"x" * 32))
