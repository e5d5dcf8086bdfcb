"""What leaves a protected run beside its release must not depend on the private train split."""

from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.core.errors import DataError
from discreet.core.guarantee import delta_for
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, keep_per_unit
from discreet.models.classifier import Classifier
from discreet.models.pairs import PAIR_WIDTH
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.texthide import TextHide
from discreet.training.plan import TrainingPlan, model_settings


def test_a_cap_is_stated_and_noise_is_calibrated_for_it(tiny_encoder: Callable[[str], Path]) -> None:
    rows = Corpus(
        "ward",
        tuple(f"note {i} of a knee" for i in range(24)),
        labels=(0, 1) * 12,
        units=tuple(f"p{i // 4}" for i in range(24)),
        unit_name="patient",
    )
    model = Classifier.build(rows, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    with pytest.raises(DataError, match="at most 3 training rows of each patient"):
        TrainingPlan.make(model, rows, protect=DPSGD(1.0), max_per_unit=3)
    capped = keep_per_unit(rows, 2)
    local = LocalPrivacy(epsilon=8.0)
    plans = [TrainingPlan.make(model, capped, protect=local, max_per_unit=most) for most in (None, 2, 5)]
    assert plans[0].facts == () and "at most 5 rows of each patient" in plans[2].facts[0]
    without, two, five = (plan.protect.training.strength for plan in plans)  # type: ignore[union-attr]
    assert without == two != five  # two rows are the most that a patient has
    plan = TrainingPlan.make(model, capped, protect=DPSGD(1.0), max_per_unit=2)
    plan.check(capped)
    assert plan.max_per_unit == 2 and TrainingPlan.make(model, capped, max_per_unit=2).facts == plan.facts


def test_the_default_delta_is_a_tenth_of_one_over_n_and_never_above_1e_5() -> None:
    assert [delta_for(n) for n in (1, 500, 10_000)] == [1e-5] * 3
    assert delta_for(67_349) == pytest.approx(1 / 673_490)


@pytest.mark.parametrize(
    ("protect", "task", "encoder", "expected"),
    [
        (DPSGD(epsilon=3.0), "classification", "minilm", ("separate", "head", "linear")),
        (TextHide(), "regression", "minilm", ("separate", "head", "absolute")),
        (InstanceEncoding(epsilon=8.0), "regression", "minilm", ("separate", "head", "linear")),
        (None, "regression", "minilm", ("separate", "head", "linear")),
        (None, "classification", "minilm", ("joint", "all", "linear")),
        (DPSGD(epsilon=3.0), "classification", "bilstm", ("joint", "all", "linear")),
    ],
)
def test_pairs_are_read_separately_where_that_learns_more(
    protect: Protection | None, task: str, encoder: str, expected: tuple[str, str, str]
) -> None:
    chosen = model_settings({"encoder": encoder}, protect, 20_000, task, pairs=True)
    assert (chosen.pairs, chosen.train, chosen.head) == expected
    single = model_settings({"encoder": encoder}, protect, 20_000, task)
    assert single.pairs == "joint"
    set_by_user = model_settings({"encoder": encoder, "pairs": "joint"}, protect, 20_000, task, pairs=True)
    assert set_by_user == single


def test_a_private_head_on_pairs_reads_all_of_them_in_every_step() -> None:
    defaults = DPSGD(epsilon=3.0).defaults("head", 3000, PAIR_WIDTH)
    assert (defaults.batch_size, defaults.epochs) == (3000, 200)
    assert DPSGD(epsilon=3.0).defaults("head", 3000, 384).batch_size < 3000
