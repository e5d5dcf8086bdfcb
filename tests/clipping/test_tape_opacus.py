"""Against the peer: Opacus's per-sample gradients, where it supports the model."""

import warnings

import pytest
import torch

from discreet.clipping import Flat, Tape, clipped_sum

opacus = pytest.importorskip("opacus")


@pytest.mark.parametrize("name", ["bert", "distilbert", "recurrent"])
def test_norms_and_clipped_sums_agree_with_opacus(case_of, name: str) -> None:
    case = case_of(name)
    case.model.train()  # Opacus listens in training mode alone
    for module in case.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if hasattr(case.model, "config"):
        case.model.config.attention_probs_dropout_prob = 0.0
    if name == "bert":
        # Positions broadcast over the batch give Opacus one gradient for the whole batch.
        case.model.bert.embeddings.position_embeddings.requires_grad_(False)
    if name == "distilbert":
        case.model.distilbert.embeddings.position_embeddings.requires_grad_(False)
    if name == "recurrent":
        case.model.norm = torch.nn.LayerNorm(32)
    tape = Tape(case.model)
    with tape:
        losses = case.losses()
    record = tape.backward(losses)
    norms = record.norms()
    bound = float(norms.median())
    clipped = clipped_sum(record, Flat(bound))
    ours = clipped.gradients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = opacus.GradSampleModule(case.model, loss_reduction="sum", strict=False)
        case.losses().sum().backward()
        samples = {n: p.grad_sample for n, p in case.model.named_parameters() if p.requires_grad}
        theirs = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).norm(dim=0)
        assert torch.allclose(norms, theirs, rtol=1e-5)
        assert torch.allclose(clipped.factors, (bound / theirs).clamp_max(1.0), rtol=1e-3)
        size = max(float(s.abs().max()) for s in samples.values())
        for parameter, sample in samples.items():
            total = torch.einsum("b,b...->...", clipped.factors, sample)
            assert torch.allclose(ours[parameter], total, atol=2e-5 * size), parameter
        wrapped.remove_hooks()
