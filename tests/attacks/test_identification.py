from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

from discreet.accounting.events import ClippedSumDpEvent, SelfComposedDpEvent, VonMisesFisherDpEvent
from discreet.accounting.risk import most_identified
from discreet.attacks import identification
from discreet.attacks.identification import Identified, OneOfN, direction_sweep, gaussian_sweep, gram_matrix
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

TEXTS = ("the heart was dull", "a knee", "the lung is bright", "sharp pain in the back", "fever and cough", "sleep")


def lower(found: Identified) -> float:
    return float(beta.ppf(0.025, found.hits, found.draws - found.hits + 1)) if found.hits else 0.0


@pytest.fixture
def candidates() -> Corpus:
    return Corpus("toy", TEXTS, labels=(0, 1, 0, 1, 0, 1))


@pytest.fixture
def model(candidates: Corpus, tiny_encoder: Callable[[str], Path]) -> Classifier:
    return Classifier.build(candidates, rng=Rng(0), encoder=str(tiny_encoder("bert")), dropout=0.0)


@pytest.fixture
def contributions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each candidate's contribution once, for tests with many releases of one model and one corpus."""
    compute = identification.contribution
    known: dict[object, dict[str, torch.Tensor]] = {}

    def contribution(model: Classifier, row: Corpus, clip: object) -> dict[str, torch.Tensor]:
        if (row.texts, clip) not in known:
            known[row.texts, clip] = compute(model, row, clip)
        return known[row.texts, clip]

    monkeypatch.setattr(identification, "contribution", contribution)


def knowledge(model: Classifier, candidates: Corpus) -> Knowledge:
    return Knowledge(model=model, extra={"candidates": candidates})


def test_the_gram_matrix_is_that_of_the_gradients(model: Classifier, candidates: Corpus) -> None:
    rows = []
    for j in range(len(candidates)):
        release = open_release(model, candidates.take([j]))
        rows.append(torch.cat([g.flatten() for g in release.gradients.values()]).double())
    expected = torch.stack(rows) @ torch.stack(rows).T
    np.testing.assert_allclose(gram_matrix(model, candidates), expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.search
@pytest.mark.parametrize("noise", ["gaussian", "von-mises-fisher"])
def test_without_noise_every_candidate_is_named(noise: str, model: Classifier, candidates: Corpus) -> None:
    attack = OneOfN(noise=noise, clip_norm=0.1)
    for j in range(len(candidates)):
        protect = DPSGD(1e-6, 0.1) if noise == "gaussian" else DirDPSGD.for_model(model, 1e9)
        seen = protected_release(model, candidates.take([j]), protect, Rng(j), delta=1e-5)
        guess = attack.run(seen, knowledge(model, candidates), Rng(0))
        assert guess.indices[0] == j
        assert guess.texts == (TEXTS[j],)
        assert list(guess.scores) == sorted(guess.scores, reverse=True)


@pytest.mark.usefixtures("contributions_once")
def test_on_random_gradients_it_is_right_by_chance(model: Classifier, candidates: Corpus) -> None:
    generator = torch.Generator().manual_seed(0)
    named = []
    for _ in range(60):
        noise = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
        guess = OneOfN().run(GradientRelease(noise, batch_size=1), knowledge(model, candidates), Rng(0))
        named.append(guess.indices[0])
    assert max(named.count(j) for j in range(6)) < 45


@pytest.mark.usefixtures("contributions_once")
def test_the_sweep_tells_how_the_attack_itself_does(model: Classifier, candidates: Corpus) -> None:
    """The simulation from inner products against real noisy releases."""
    sigma, runs = 0.5, 200
    (swept,) = gaussian_sweep(gram_matrix(model, candidates), [sigma], Rng(1), clip_norm=1.0)
    hits = 0
    for run in range(runs):
        truth = run % len(candidates)
        seen = protected_release(model, candidates.take([truth]), DPSGD(sigma, 1.0), Rng(run), delta=1e-5)
        hits += OneOfN(clip_norm=1.0).run(seen, knowledge(model, candidates), Rng(0)).indices[0] == truth
    assert hits / runs == pytest.approx(swept.success, abs=4 * np.sqrt(0.25 / runs))


def test_no_sweep_beats_the_bound_and_success_falls_with_noise() -> None:
    n, d = 16, 400
    rows = np.random.default_rng(0).standard_normal((n, d))
    gram = rows @ rows.T
    strengths = [0.05, 0.2, 0.5, 1.0, 2.0, 4.0]
    found = gaussian_sweep(gram, strengths, Rng(0))
    for one in found:
        assert lower(one) <= most_identified(ClippedSumDpEvent(one.strength), n) + 1e-9
    assert found[0].success > 0.999
    assert [f.hits for f in found] == sorted((f.hits for f in found), reverse=True)
    assert found[-1].success == pytest.approx(1 / n, abs=0.05)
    turned = direction_sweep(gram, [1.0, 10.0, 40.0, 200.0, 5000.0], d, Rng(0))
    for one in turned:
        assert lower(one) <= most_identified(VonMisesFisherDpEvent(one.strength, d), n, "zero-out") + 1e-9
    assert [f.hits for f in turned] == sorted(f.hits for f in turned)
    assert turned[-1].success > 0.999


def test_several_steps_add_up() -> None:
    gram = np.eye(8)
    (once,) = gaussian_sweep(gram, [1.0], Rng(0))
    (four,) = gaussian_sweep(gram, [1.0], Rng(0), steps=4)
    (half,) = gaussian_sweep(gram, [0.5], Rng(3))
    assert four.success > once.success
    assert four.success == pytest.approx(half.success, abs=0.015)
    assert lower(four) <= most_identified(SelfComposedDpEvent(ClippedSumDpEvent(1.0), 4), 8)


def test_two_orthogonal_candidates_have_a_known_answer() -> None:
    # the scores differ by |c1 - c2|^2 / 2 with noise of width |c1 - c2| sigma: Phi(|c1 - c2| / (2 sigma))
    (found,) = gaussian_sweep(np.eye(2), [1.0], Rng(0), draws=200_000)
    assert found.success == pytest.approx(norm.cdf(np.sqrt(2) / 2), abs=0.005)


def test_what_it_cannot_use_is_refused(model: Classifier, candidates: Corpus) -> None:
    seen = open_release(model, candidates.take([0]))
    with pytest.raises(UnsupportedError, match="extra\\['candidates'\\]"):
        OneOfN().run(seen, Knowledge(model=model), Rng(0))
    with pytest.raises(SettingError, match="batch_size to be .*, got 2"):
        OneOfN().run(open_release(model, candidates.take([0, 1])), knowledge(model, candidates), Rng(0))
    frozen = Classifier.build(candidates, rng=Rng(0), encoder=model.settings.encoder, train="head")
    with pytest.raises(UnsupportedError, match="the parameters that the model trains"):
        OneOfN().run(open_release(frozen, candidates.take([0])), knowledge(model, candidates), Rng(0))
    with pytest.raises(SettingError, match="Did you mean 'gaussian'"):
        OneOfN(noise="gausian")
