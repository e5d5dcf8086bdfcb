import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng


@given(st.integers(), st.text(max_size=5), st.text(max_size=5))
def test_a_fork_depends_on_seed_and_path_alone(seed: int, first: str, second: str) -> None:
    one = Rng(seed).fork(first).fork(second)
    rng = Rng(seed)
    rng.uniform(3)  # drawing from the parent does not move its forks
    assert (one.words(4) == rng.fork(first, second).words(4)).all()


def test_forks_differ_from_each_other_and_from_their_parent() -> None:
    rng = Rng(1)
    streams = [Rng(1), rng.fork("a"), rng.fork("b"), rng.fork("a", "b"), rng.fork("ab"), Rng(2)]
    assert len({tuple(s.words(2).tolist()) for s in streams}) == len(streams)


def test_generators_repeat_and_move_on() -> None:
    a, b = Rng(3), Rng(3)
    assert a.numpy().normal() == b.numpy().normal()
    x = torch.rand(2, generator=a.torch())
    assert torch.equal(x, torch.rand(2, generator=b.torch()))
    assert not torch.equal(x, torch.rand(2, generator=a.torch()))


@pytest.mark.parametrize("rng", [Rng(0), Rng.secure()], ids=["seeded", "secure"])
def test_uniform_numbers_are_uniform_and_orders_are_orders(rng: Rng) -> None:
    assert stats.kstest(rng.uniform(20_000), "uniform").pvalue > 1e-6
    assert sorted(rng.permutation(100).tolist()) == list(range(100))


def test_a_secure_source_never_repeats_and_refuses_generators_by_name() -> None:
    rng = Rng.secure()
    assert rng.is_secure and rng.fork("x").is_secure
    assert not np.array_equal(rng.fork("x").words(4), rng.fork("x").words(4))
    for ask in (rng.numpy, rng.torch, rng.seed):
        with pytest.raises(SettingError, match="Expected a seeded source for Laplace"):
            ask(user="Laplace")


def test_nothing_of_the_key_is_shown() -> None:
    assert repr(Rng(42).fork("noise")) == "Rng(seeded, path=noise)"


@pytest.mark.parametrize("seed", [1.5, True])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(SettingError, match="an integer"):
        Rng(seed)


def test_cpu_streams_use_the_whole_key_and_not_32_bits_of_it() -> None:
    """Two streams whose seeds agree in their low 32 bits, which are all that torch's own seeding reads, differ."""
    same = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + (7 << 32))
    assert torch.equal(*(torch.randn(4, generator=g) for g in same))  # the fault that is worked around
    streams = {tuple(torch.randint(0, 1 << 62, (2,), generator=Rng(0).fork(i).torch()).tolist()) for i in range(3000)}
    assert len(streams) == 3000
    first, second = Rng(0).fork("a").torch().get_state(), Rng(0).fork("b").torch().get_state()
    words = [state[24 : 24 + 8 * 624].numpy().view(np.uint64) for state in (first, second)]
    assert (words[0] != words[1]).mean() > 0.99
    assert max(int(w.max()) for w in words) < 1 << 32


def test_cpu_streams_are_normal_and_independent() -> None:
    draws = torch.stack([torch.randn(20_000, generator=Rng(1).fork(i).torch()) for i in range(4)])
    for row in draws.numpy():
        assert stats.kstest(row, "norm").pvalue > 1e-5
    off = torch.corrcoef(draws) - torch.eye(4)
    assert float(off.abs().max()) < 0.04


def test_a_secret_source_repeats_for_its_key_alone_and_says_so() -> None:
    key = bytes(range(32))
    assert Rng.secret(key).fork("x").uniform(1) == Rng.secret(key).fork("x").uniform(1)
    assert Rng.secret().uniform(1) != Rng.secret().uniform(1)
    assert Rng.secret().fork("x").is_secret and Rng.secure().is_secret
    assert not Rng(0).fork("x").is_secret


def test_seeding_torch_for_a_device_draws_as_manual_seed_does_and_notes_nothing_for_others() -> None:
    rng = Rng(5).fork("dropout", 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.seed())
        wanted = torch.rand(4)
        queued = len(torch.xpu._queued_calls), len(torch.cuda._queued_calls)
        rng.seed_torch(torch.device("cpu"))
        assert torch.equal(torch.rand(4), wanted)
        assert (len(torch.xpu._queued_calls), len(torch.cuda._queued_calls)) == queued


@pytest.mark.parametrize(("name", "seeded"), [("cuda:0", 0), ("cuda:1", 1), ("cuda", 1)])
def test_seeding_torch_for_a_gpu_seeds_that_gpu_and_the_cpu(
    name: str, seeded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tuple(torch.Generator().manual_seed(number) for number in range(2))
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    rng = Rng(5).fork("dropout", 3)
    with torch.random.fork_rng(devices=[]):
        rng.seed_torch(torch.device(name))
        assert torch.default_generator.initial_seed() == rng.seed()
    assert gpus[seeded].initial_seed() == rng.seed()
    assert gpus[1 - seeded].initial_seed() == 1 - seeded


@pytest.mark.parametrize("rng", [Rng(0), Rng.secure()], ids=["seeded", "secure"])
def test_floating_point_draws_follow_their_distributions_from_either_source(rng: Rng) -> None:
    source = rng.floats()
    found = {"uniform": source.random(20_000), "norm": source.standard_normal(20_001)}
    found["expon"] = source.standard_exponential(20_000)
    for name, values in found.items():
        assert stats.kstest(values, name).pvalue > 1e-6
    for shape in (0.5, 1.0, 191.5):
        assert stats.kstest(source.standard_gamma(shape, 20_000), stats.gamma(shape).cdf).pvalue > 1e-6


def test_the_tail_of_a_secure_uniform_number_has_more_than_53_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rare = np.array([0, 3, 2**63, 5], dtype=np.uint64).tobytes()  # first words 0 and 3, then what follows them
    monkeypatch.setattr("os.urandom", lambda count: rare[:count])
    small, larger = Rng.secure().floats().random(2)
    assert small == (2**63 + 0.5) * 2.0**-128
    assert larger == pytest.approx(3 * 2.0**-64)
