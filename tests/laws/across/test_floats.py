"""The law of floating-point noise: a release shows nothing of the lattice its noise was drawn on.

Two attackers who know both candidates for the private value look at one release of each.

*Circles.* Normal numbers of a 24-bit Box-Muller transform come in pairs whose squared radius takes one of 2^24 values.
Under the right candidate, what is left of the release lies on these circles; under a wrong one it does not.

*Low bits.* Where value and noise nearly cancel, the sum of two rounded numbers is a multiple of the unit in the last
place of the larger one. If the value is zero it is not. So the trailing zeros of small released numbers tell how large
the private value was (Mironov 2012, On significance of the least significant bits for differential privacy).

Both told neighbours apart with certainty when noise was drawn in float32, or rounded before it was added.
"""

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import discreet
import discreet.mechanisms
from discreet import Rng, catalog
from discreet.accounting.local_layer import Sending
from discreet.clipping.tape import Tape
from discreet.core.guarantee import FLOATING_POINT
from discreet.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.priv_unit import PrivUnit
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.mechanisms.word_metric import WordChoice, WordNoise, noisy_points
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import whole_space
from discreet.protections.local.release import LocalLayer

Release = Callable[[float, Rng], torch.Tensor]
COUNT = 1 << 17
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class Case:
    """A release of many coordinates whose private value is 0 or `value` in each, and the noise's deviation there."""

    release: Release
    value: float
    std: float


def filled(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((COUNT,), value, dtype=dtype)


def rows(value: float, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((COUNT // width, width), value, dtype=dtype)


def of_rows(mechanism: Callable[[torch.Tensor, Rng], torch.Tensor], width: int, value: float, std: float) -> Case:
    return Case(lambda v, rng: mechanism(rows(v, width), rng).flatten(), value, std)


def dp_sgd(value: float, rng: Rng) -> torch.Tensor:
    halves = {"first": filled(value)[: COUNT // 2], "second": filled(value)[COUNT // 2 :]}
    return torch.cat(list(DPSGD(noise_multiplier=1.5, clip_norm=1.0).release(halves, rng).values()))


def directions(way: str) -> Release:
    """The direction of one unit whose gradient has `value` in each of many coordinates."""

    def release(value: float, rng: Rng) -> torch.Tensor:
        model = nn.Linear(COUNT, 1, bias=False)
        tape = Tape(model)
        with tape:
            losses = model(filled(value)[None])[:, 0]
        sums: dict[str, torch.Tensor] = {}
        protect = DirDPSGD.for_model(model, kappa=float(COUNT))
        getattr(protect, way)(tape.backward(losses), sums, rng)
        return sums["weight"].flatten()

    return release


def encodings(mechanism: str) -> Case:
    asked, width = InstanceEncoding(8.0, 1e-5, mechanism=mechanism), 32
    owners, labels = np.arange(COUNT // width), torch.zeros(COUNT // width, dtype=torch.int64)

    def release(value: float, rng: Rng) -> torch.Tensor:
        return asked.once(owners, width, 2, rng)(rows(value, width), labels)[0].flatten()

    return Case(release, 1 / 8, math.sqrt(asked.once(owners, width, 2, Rng(0)).noise_variance))


def live_encodings(mechanism: str) -> Case:
    asked, width, batch = InstanceEncoding(8.0, 1e-5, mechanism=mechanism, stored=False), 32, 256
    std = asked.live(batch, width, 2, Rng(0), torch.device("cpu"))
    labels = torch.zeros(batch, dtype=torch.int64)

    def release(value: float, rng: Rng) -> torch.Tensor:
        live = asked.live(batch, width, 2, rng, torch.device("cpu"))
        found = []
        for step in range(COUNT // (width * batch)):
            drawn = live.draw(np.arange(batch), (batch, width), step, 0)
            found.append(live.hide(rows(value, width)[:batch], labels, drawn)[0].flatten())
        return torch.cat(found)

    return Case(release, 1 / 8, math.sqrt(asked.variance(std.scale, width)))


def sent_again(position: str) -> Case:
    width, batch = 32, 512
    layer = LDPLayer("gaussian", width, 0.2)
    sending = Sending(population=batch, drawn=batch, steps=8, sampling="fixed")
    protect = LocalLayer(layer, layer, whole_space(width), sending, position=position)  # type: ignore[arg-type]
    labels, tokens = torch.zeros(batch, dtype=torch.int64), 4
    shape = (batch, width) if position == "sentence" else (batch, tokens, width)

    def release(value: float, rng: Rng) -> torch.Tensor:
        live = protect.live(batch, width, 2, rng, torch.device("cpu"))
        found = []
        for step in range(COUNT // math.prod(shape)):
            drawn = live.draw(np.arange(batch), shape, step, 0)
            found.append(live.hide(torch.full(shape, value), labels, drawn)[0].flatten())
        return torch.cat(found)

    return Case(release, 1 / 16, 0.2)


def cases() -> dict[str, Case]:
    book: dict[str, Case] = {}
    for dtype in DTYPES:
        for noise, std in ((Gaussian(1.5), 1.5), (Laplace(1.0), 1.4), (L2Laplace(0.125, 256), 2.0)):
            book[f"{type(noise).__name__}, {dtype}"] = Case(
                lambda v, rng, noise=noise, dtype=dtype: noise(rows(v, 256, dtype), rng).flatten(),
                value=1.0,
                std=std,
            )
    vmf, unit = VonMisesFisher(256.0, 256), PrivUnit(150.0, 256)
    book["VonMisesFisher"] = of_rows(vmf, 256, 1 / 16, 1 / 16)
    book["PrivUnit"] = of_rows(unit, 256, 1 / 16, 1 / 16 / unit.cap.mean)
    book["DPSGD"] = Case(dp_sgd, value=1.0, std=1.5)
    for way in ("gather_formed", "gather_streamed"):
        book[f"DirDPSGD, {way}"] = Case(directions(way), 1.0, 1 / math.sqrt(COUNT))
    book["LDPLayer, gaussian"] = of_rows(LDPLayer("gaussian", 32, 0.2), 32, 1 / 8, 0.2)
    for kind, strength in (("vmf", 256.0), ("privunit", 150.0)):
        layer = LDPLayer(kind, 256, strength)
        book[f"LDPLayer, {kind}"] = of_rows(layer, 256, 1 / 16, math.sqrt(layer.variance))
    book["noisy words"] = of_rows(lambda x, rng: noisy_points(x.double(), 8.0, rng).float(), 256, 1.0, 2.0)
    for mechanism in ("gaussian", "laplace", "laplace-l2"):
        book[f"Encodings, {mechanism}"] = encodings(mechanism)
        book[f"LiveEncodings, {mechanism}"] = live_encodings(mechanism)
    for position in ("sentence", "token"):
        book[f"SentAgain, {position}"] = sent_again(position)
    return book


BOOK = cases()
NORMAL = [name for name in BOOK if name.startswith(("Gaussian", "DPSGD", "SentAgain")) or name.endswith(", gaussian")]
# Mechanisms whose release is an integer, a category or a word: it has no low bits.
DISCRETE = {RandomizedResponse, DiscreteLaplace, DiscreteGaussian, WordNoise, WordChoice}
# What each protection's noise is called in the book; texthide has none and promises nothing, words are discrete.
PROTECTIONS = {
    "dp-sgd": "DPSGD",
    "dir-dp-sgd": "DirDPSGD",
    "texthide": None,
    "dp-ie": "Encodings",
    "ldp": "LDPLayer",
    "santext": None,
    "santext+": None,
    "word-noise": None,
}


def on_circles(noise: np.ndarray) -> float:
    """Return the share of far pairs, as torch pairs float32 normal numbers on a CPU, that lie on a circle."""
    blocks = noise[: len(noise) // 16 * 16].reshape(-1, 2, 8)
    squared = (blocks**2).sum(1).ravel()
    far = squared[squared > 3.6**2]
    assert len(far) > 50
    order = np.exp(-far / 2) * 2**24
    return float((np.abs(order - np.round(order)) < 0.12).mean())


def trailing(released: np.ndarray, std: float) -> float:
    """Return the mean place of the last binary digit of the released numbers near zero."""
    near = released[(np.abs(released) < std / 64) & (released != 0)]
    assert len(near) > 50
    mantissa, exponent = np.frexp(near)
    whole = (mantissa * 2.0**53).astype(np.int64)
    zeros = np.log2((whole & -whole).astype(np.float64))
    return float((53 - zeros - exponent).mean())


@pytest.mark.parametrize("name", NORMAL)
def test_what_is_left_of_a_release_lies_on_no_circles(name: str) -> None:
    case = BOOK[name]
    released = case.release(case.value, Rng(11)).double().numpy()
    # By chance 24% of the pairs come near a circle; 60% of a hundred do less than once in 10^12.
    assert on_circles((released - case.value) / case.std) < 0.6


@pytest.mark.parametrize("name", BOOK)
def test_the_low_bits_of_a_release_do_not_tell_the_private_value(name: str) -> None:
    case = BOOK[name]
    empty = trailing(case.release(0.0, Rng(12)).double().numpy(), case.std)
    there = trailing(case.release(case.value, Rng(13)).double().numpy(), case.std)
    # The last digit's place has a deviation of 1.4, so the means of a thousand are about 0.06 apart.
    assert abs(empty - there) < 0.5


def test_noise_as_it_was_drawn_before_is_caught() -> None:
    """The attackers are able: on float32 noise they tell the two values apart."""

    def before(value: float, rng: Rng) -> np.ndarray:
        return (filled(value) + 1.5 * torch.empty(COUNT).normal_(generator=rng.torch())).double().numpy()

    right, wrong = (on_circles((before(1.0, Rng(11)) - guess) / 1.5) for guess in (1.0, 0.0))
    assert right > 0.9 and wrong < 0.6
    assert abs(trailing(before(0.0, Rng(12)), 1.5) - trailing(before(1.0, Rng(13)), 1.5)) > 2


def test_the_book_holds_every_mechanism_and_protection_with_continuous_noise() -> None:
    found = set()
    for info in pkgutil.iter_modules(discreet.mechanisms.__path__):
        module = importlib.import_module(f"discreet.mechanisms.{info.name}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            own = kind.__module__ == module.__name__ and not name.startswith("_")
            if own and dataclasses.is_dataclass(kind) and hasattr(kind, "event"):
                found.add(kind)
    held = {kind for kind in found if any(name.split(",")[0] == kind.__name__ for name in BOOK)}
    assert held | DISCRETE == found
    assert set(PROTECTIONS) == set(catalog.PROTECTIONS)
    assert all(any(name.startswith(at) for name in BOOK) for at in PROTECTIONS.values() if at is not None)


# Where else than in these files a floating-point generator is called. What it draws there is not what hides a value:
# weights of mixtures, noise on what was already released, tests of kernels, examples in docstrings.
_DRAWS = re.compile(
    r"\.(normal|exponential|cauchy|log_normal|uniform)_\(|torch\.(randn|rand|normal)\(|standard_(normal|exp\w*)\("
)
_NOT_NOISE = {
    "protections/instance_encoding.py": 1,
    "protections/texthide.py": 1,
    "protections/local/release.py": 1,
    "protections/local/projection.py": 3,
    "mechanisms/sphere_kernels.py": 2,
    "training/independence.py": 1,
}
_NOISE = {"mechanisms/normals.py", "mechanisms/laplace.py"}


def test_noise_is_drawn_in_one_place() -> None:
    source = Path(discreet.__file__).parent
    found: dict[str, int] = {}
    for folder in ("mechanisms", "protections", "training", "local", "experiment", "releases"):
        for path in sorted((source / folder).glob("**/*.py")):
            calls = len(_DRAWS.findall(path.read_text(encoding="utf-8")))
            name = path.relative_to(source).as_posix()
            if calls and name not in _NOISE:
                found[name] = calls
    assert found == _NOT_NOISE


def test_every_certificate_of_continuous_noise_says_what_it_assumes_of_floating_point() -> None:
    from discreet.training.account import RELEASED, SUMS

    corpus = discreet.load("notes").split("train").take([0, 1])
    model = discreet.models.Classifier.build(corpus, rng=Rng(1), train="head")
    release = discreet.releases.protected_release(model, corpus, DPSGD(1.0), Rng.secret(), delta=1e-5)
    assert FLOATING_POINT in release.guarantee.assumptions
    assert FLOATING_POINT in SUMS
    assert FLOATING_POINT in RELEASED
