import pytest
import torch

from discreet.cli.options import use_threads
from discreet.core.errors import SettingError


def test_torch_computes_with_the_threads_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    try:
        use_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_no_thread_at_all_is_refused() -> None:
    with pytest.raises(SettingError, match="Expected threads to be an integer >= 1, got 0"):
        use_threads(0)
