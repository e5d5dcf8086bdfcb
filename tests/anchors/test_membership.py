"""Membership attacks where the right answer is known: a mu-GDP model, and the papers' formulas by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from discreet.accounting.events import GaussianDpEvent
from discreet.attacks.base import Family, Need
from discreet.attacks.membership.likelihood import Lira, ReferenceThreshold, Rmia, dominance
from discreet.attacks.membership.signals import MembershipAttack, Outputs, References, Signals, TokenScores
from discreet.catalog import ATTACKS, attack_class
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, Leakage, ModelRelease
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.attack.membership import Certificate
from discreet.experiment.attack.scene import Target
from discreet.metrics.membership import AUC, Scored, auc, tpr_metric, true_positives_at
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.runs.folder import RunChoices

MEMBERSHIP = [name for name in ATTACKS if attack_class(name).family is Family.MEMBERSHIP]
COUNT, TOKENS = 1000, 16  # members, and non-members; tokens of an example


def outputs(logits: np.ndarray) -> Outputs:
    """Return the outputs of a two-class model whose confidence in the true label is this logit."""
    losses = np.logaddexp(0, -logits)
    return Outputs(losses, logits, np.stack([np.exp(-losses), -np.expm1(-losses)], axis=-1))


def signals_of(mu: float, seed: int, models: int = 128) -> tuple[Signals, np.ndarray]:
    """Return what models reveal that release, for each example, one normal number with mean mu if it is a member.

    That number is the most that a mu-GDP model can reveal. Examples differ in difficulty more than by membership.
    """
    draw = np.random.default_rng(seed)
    inside = draw.permutation(2 * COUNT) < COUNT
    difficulty, known = 2 * draw.normal(size=2 * COUNT), 2 * draw.normal(size=COUNT)
    halves, beside = draw.random((models, 2 * COUNT)) < 0.5, draw.random((models, COUNT)) < 0.5

    def release(members: np.ndarray) -> np.ndarray:
        return np.asarray(draw.normal(size=members.shape) + mu * members)

    own = release(inside)
    changes = draw.normal(size=(2 * COUNT, TOKENS)) / math.sqrt(TOKENS)
    changes += (own / TOKENS - changes.mean(axis=1))[:, None]  # given their sum, the rest says nothing
    before = -draw.exponential(2.0, size=changes.shape)
    signals = Signals(
        target=outputs(difficulty + own),
        labels=draw.integers(0, 2, 2 * COUNT),
        references=References(outputs(difficulty + release(halves)), halves),
        population=outputs(known + release(np.zeros(COUNT))),
        population_references=References(outputs(known + release(beside)), beside),
        neighbours=np.logaddexp(0, -(difficulty[:, None] + draw.normal(size=(2 * COUNT, 8)))),
        tokens=TokenScores(before + changes, draw.random(changes.shape) < 0.3, np.ones(changes.shape, bool), before),
        units=np.arange(2 * COUNT),
    )
    return signals, inside


@pytest.fixture(scope="module")
def released() -> tuple[Signals, np.ndarray]:
    return signals_of(1.0, seed=4)


def measured(attack: MembershipAttack, signals: Signals, inside: np.ndarray) -> tuple[Leakage, Scored]:
    knows = Knowledge(extra={Need.SIGNALS.value: signals})
    guess = attack.run(ModelRelease(None), knows, Rng(0))  # type: ignore[arg-type]
    scored = Scored.of(np.array(guess.scores), inside)
    return auc(scored), scored


def certificate(mu: float) -> Certificate:
    corpus = Corpus("toy", ("a",))
    choices = RunChoices(TextSource("notes"), ModelSettings(), TrainSettings())
    stated = Guarantee(3.0, 1e-5, "row", Adjacency.ADD_REMOVE, "pld")
    found = Certificate.of(Target(corpus, choices, GaussianDpEvent(1 / mu), Adjacency.ADD_REMOVE, stated))
    assert found is not None
    return found


def test_the_certificate_of_a_mu_gdp_model_is_the_area_below_its_trade_off_curve() -> None:
    for mu in (0.3, 1.0, 2.5):
        bounds = certificate(mu).bounds()
        best = norm.cdf(mu / math.sqrt(2))
        assert best <= bounds[AUC] <= best + 0.002  # rounded up, never down
        assert bounds["tpr_at_0.01"] == pytest.approx(norm.cdf(norm.ppf(0.01) + mu), rel=1e-6)
        assert bounds["advantage"] >= 2 * norm.cdf(mu / 2) - 1


@pytest.mark.parametrize("name", MEMBERSHIP)
def test_no_attack_is_above_the_bound(name: str, released: tuple[Signals, np.ndarray]) -> None:
    signals, inside = released
    found, scored = measured(attack_class(name)(), signals, inside)  # type: ignore[arg-type]
    allowed = certificate(1.0)
    assert found.low <= allowed.bounds()[AUC]
    for rate in (0.1, 0.01):
        at = true_positives_at(scored, rate)
        assert at is not None and at.low <= allowed.at(at.false_positives_high), tpr_metric(rate)
    assert found.high >= 0.5, "a model that reveals membership is not read the wrong way round"


def test_lira_reaches_the_bound(released: tuple[Signals, np.ndarray]) -> None:
    """Its AUC is that of the best test, Phi(mu / sqrt 2), up to the sample and to what few reference models cost."""
    signals, inside = released
    found, _ = measured(Lira(), signals, inside)
    best = norm.cdf(1 / math.sqrt(2))
    error = (found.high - found.low) / 3.92
    assert abs(found.value - best) < 4 * error  # 1 in 16,000 draws by bad luck
    loss, _ = measured(attack_class("loss")(), signals, inside)  # type: ignore[arg-type]
    assert found.low > loss.high, "without reference models, difficulty hides membership"


def test_the_interval_of_lira_covers_the_best_auc() -> None:
    """Over 20 models the 95% interval misses it at most 5 times, which has a probability of 0.03% otherwise."""
    best, misses = norm.cdf(1 / math.sqrt(2)), 0
    for seed in range(20):
        signals, inside = signals_of(1.0, seed, models=200)
        found, _ = measured(Lira(), signals, inside)
        misses += not found.low <= best <= found.high
    assert misses <= 5


@pytest.mark.parametrize("name", MEMBERSHIP)
def test_a_model_that_reveals_nothing_is_at_chance(name: str) -> None:
    signals, inside = signals_of(0.0, seed=9, models=32)
    found, _ = measured(attack_class(name)(), signals, inside)  # type: ignore[arg-type]
    assert abs(found.value - 0.5) < 5 * (found.high - found.low) / 3.92


# Three examples, four reference models; the confidences are round numbers, so that the formulas can be followed.
LOGITS = np.array([[1.0, 0.0, 2.0], [3.0, 1.0, 0.0], [0.0, 4.0, 1.0], [-2.0, 2.0, 5.0]])
INCLUDED = np.array([[True, False, True], [True, False, False], [False, True, False], [False, True, True]])
TARGET = np.array([2.5, 0.5, 3.0])


def by_hand() -> Signals:
    return Signals(outputs(TARGET), references=References(outputs(LOGITS), INCLUDED))


def test_lira_online_by_hand() -> None:
    """Means in: 2, 3, 3.5; out: -1, 0.5, 0.5. The pooled variances are (2 + 2 + 4.5) / 3 and (2 + 0.5 + 0.5) / 3."""
    inside, outside = (2 + 2 + 4.5) / 3, (2 + 0.5 + 0.5) / 3
    expected = [
        norm.logpdf(x, m_in, math.sqrt(inside)) - norm.logpdf(x, m_out, math.sqrt(outside))
        for x, m_in, m_out in zip(TARGET, (2.0, 3.0, 3.5), (-1.0, 0.5, 0.5), strict=True)
    ]
    assert Lira().score(by_hand(), Rng(0)) == pytest.approx(expected)


def test_lira_offline_by_hand() -> None:
    expected = [(2.5 + 1) / 1.0, (0.5 - 0.5) / 1.0, (3.0 - 0.5) / 1.0]
    assert Lira(online=False).score(by_hand(), Rng(0)) == pytest.approx(expected)


def test_mia_r_by_hand() -> None:
    """Each example has its own variance: 2, 0.5 and 0.5; without smoothing, models with a larger loss are counted."""
    expected = [3.5 / math.sqrt(2), 0.0, 2.5 / math.sqrt(0.5)]
    assert ReferenceThreshold().score(by_hand(), Rng(0)) == pytest.approx(expected)
    assert ReferenceThreshold(smoothing="none").score(by_hand(), Rng(0)).tolist() == [1.0, 0.5, 1.0]


def test_rmia_by_hand() -> None:
    """Probabilities are set directly; online p(x) is the mean of both halves, offline ((1 + a) p_out + 1 - a) / 2."""

    def of(probabilities: np.ndarray) -> Outputs:
        return Outputs(-np.log(probabilities), np.log(probabilities / (1 - probabilities)))

    target, included = np.array([0.9, 0.4]), np.array([[True, False], [False, True]])
    references, known = np.array([[0.8, 0.3], [0.4, 0.5]]), np.array([0.6, 0.2, 0.5])
    beside = np.array([[0.6, 0.4, 0.9], [0.2, 0.4, 0.1]])
    beside_included = np.array([[True, False, True], [False, True, False]])
    signals = Signals(
        of(target),
        references=References(of(references), included),
        population=of(known),
        population_references=References(of(beside), beside_included),
    )
    ratios = target / np.array([(0.8 + 0.4) / 2, (0.3 + 0.5) / 2])  # 1.5, 1
    others = known / np.array([0.4, 0.4, 0.5])  # 1.5, 0.5, 1
    shares = dominance(ratios, others, 1.0)
    assert shares.tolist() == [1.0, 2 / 3]
    found = Rmia().score(signals, Rng(0))
    assert np.floor(found * 4 + 1e-9) / 3 == pytest.approx(shares)  # equal shares are ordered by their ratio
    strict = dominance(ratios, others, 2.0)
    assert strict.tolist() == [1 / 3, 1 / 3]
    scaled = target / np.array([(1.2 * 0.4 + 0.8) / 2, (1.2 * 0.3 + 0.8) / 2])
    around = known / np.array([(1.2 * 0.2 + 0.8) / 2, (1.2 * 0.4 + 0.8) / 2, (1.2 * 0.1 + 0.8) / 2])
    offline = Rmia(online=False, a=0.2).score(signals, Rng(0))
    assert np.floor(offline * 4 + 1e-9) / 3 == pytest.approx(dominance(scaled, around, 1.0))


def test_ez_mia_of_a_model_that_was_not_fine_tuned_is_constant() -> None:
    before = -np.random.default_rng(0).exponential(size=(6, 5))
    tokens = TokenScores(before, np.zeros((6, 5), bool), np.ones((6, 5), bool), before)
    scores = attack_class("ez-mia")().score(Signals(outputs(np.zeros(6)), tokens=tokens), Rng(0))  # type: ignore[attr-defined]
    assert scores.tolist() == [0.5] * 6
