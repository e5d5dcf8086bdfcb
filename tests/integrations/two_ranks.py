"""What each rank of the tests of distributed training runs: `torchrun … two_ranks.py FOLDER ACTION …`."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet import DPSGD, DirDPSGD, Rng, make_private
from discreet.core.errors import DiscreetError

ROWS, UNITS = 60, 30


def build() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    return model, TensorDataset(torch.randn(ROWS, 6), torch.randint(0, 3, (ROWS,)))


def end_processes(folder: Path) -> None:
    """End the group of all ranks, and write down which threads of this process are left."""
    rank = dist.get_rank()
    dist.barrier()  # nobody leaves while another one still sends
    dist.destroy_process_group()
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []
    (folder / f"threads.{rank}.json").write_text(json.dumps(names))


def losses_of(model: nn.Module, part: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(part[0]), part[1], reduction="none")


DELTA = 1 / (10 * UNITS)
PROTECTIONS = {
    "dp-sgd": DPSGD(noise_multiplier=0.7, clip_norm=0.5),
    "dir-dp-sgd": DirDPSGD(kappa=50.0),
    "few": DPSGD(noise_multiplier=0.7, epsilon=1.2, delta=DELTA),
}


def train(folder: Path, what: str, stop: int | None = None, resume: bool = False) -> dict[str, object]:
    """Train, and return the weights with what is known of the training on this rank."""
    model, dataset = build()
    if int(os.environ.get("RANK", 0)) == 1:
        with torch.no_grad():
            model[0].weight.add_(1.0)  # rank 0's weights are the ones that count
    size = 2 if what == "few" else 8
    with make_private(
        model,
        PROTECTIONS[what],
        num_units=UNITS,
        batch_size=size,
        steps=6,
        ledger=folder / f"{what}.jsonl",
        secret=Rng(4),
    ) as private:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        saved = folder / f"{what}.pt"
        if resume:
            state = torch.load(saved, weights_only=True)
            private.load_state_dict(state["private"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        losses = partial(losses_of, model)
        for _ in private.batches(dataset, groups=[row % UNITS for row in range(ROWS)], max_rows=4):
            if private.step(losses, optimizer) and private.position == stop:
                if int(os.environ.get("RANK", 0)) == 1:
                    os._exit(9)  # this rank dies
                states = {"private": private.state_dict(), "model": model.state_dict()}
                torch.save(states | {"optimizer": optimizer.state_dict()}, saved)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        spends = private.ledger.statement.spends if int(os.environ.get("RANK", 0)) == 0 else None
    return {"weights": weights, "position": private.position, "spends": spends, "out": private.out_of_budget}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    where = Path(sys.argv[1])
    for action in sys.argv[2:]:
        try:
            if action == "die":
                result = train(where, "dp-sgd", stop=3)
            elif action == "resume":
                result = train(where, "dp-sgd", resume=True)
            else:
                result = train(where, action)
        except DiscreetError as error:
            result = {"error": type(error).__name__, "message": str(error)}
        (where / f"{action}.{dist.get_rank()}.json").write_text(json.dumps(result))
    end_processes(where)
