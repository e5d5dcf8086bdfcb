from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.planned import train

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy


@pytest.mark.parametrize("protect", [InstanceEncoding(epsilon=8), LocalPrivacy(epsilon=50)], ids=lambda p: p.name)
def test_with_a_fixed_seed_the_last_bits_of_the_vectors_do_not_decide_the_noise(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], protect: Protection
) -> None:
    heads = []
    for change in (0.0, 1e-6):
        model = Classifier.build(corpus, rng=Rng(1), encoder=str(tiny_encoder("bert")), train="head")
        with torch.no_grad():
            for parameter in model.encoder.parameters():
                parameter.mul_(1 + change)
        settings = TrainSettings(epochs=2, learning_rate=1e-2, batch_size=16)
        train(model, corpus, settings, seed=0, protect=protect, secret=Rng(9))
        heads.append(torch.cat([value.flatten() for value in model.head.parameters()]))
    torch.testing.assert_close(heads[1], heads[0], rtol=1e-3, atol=1e-3)
