import torch

from discreet.core.randomness import Rng
from discreet.protections.texthide import AllMasks, OneMask, signs


def test_masks_are_in_no_state_and_no_repr() -> None:
    masks = signs(3, 8, Rng(0))
    for query in (OneMask(masks[0]), AllMasks(masks)):
        assert not query.state_dict() and "1." not in repr(query)


def test_all_masks_give_a_view_of_every_vector_under_each() -> None:
    masks, vectors = signs(3, 8, Rng(0)), torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    views = AllMasks(masks)(vectors)
    assert views.shape == (3, 5, 8)
    for mask, view in zip(masks, views, strict=True):
        torch.testing.assert_close(view, OneMask(mask)(vectors))
        torch.testing.assert_close(OneMask(mask)(view), vectors)
