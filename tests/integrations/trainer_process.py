"""A private Trainer as a process of its own, to be killed or run by torchrun: `trainer_process.py FOLDER [resume]`."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from tests.integrations.two_ranks import end_processes
from torch import Tensor

from discreet import DPSGD, Rng
from discreet.integrations.transformers import PrivateTrainer

logging.getLogger("transformers").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
ROWS, UNITS, STEPS = 40, 20, 12


def build() -> tuple[torch.nn.Module, list[dict[str, Any]]]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=40, max_position_embeddings=16, num_labels=2)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # masks depend on the size of a part
    model = transformers.BertForSequenceClassification(config)
    ids = torch.randint(1, 40, (ROWS, 6)).tolist()
    return model, [{"input_ids": one, "labels": row % 2, "unit": row % UNITS} for row, one in enumerate(ids)]


def train(folder: Path, resume: bool = False) -> PrivateTrainer:
    model, rows = build()
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", "1")),
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        learning_rate=0.01,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = PrivateTrainer(
        model, args, train_dataset=rows, protect=DPSGD(noise_multiplier=1.0), groups="unit", secret=Rng(6)
    )
    started = (folder / "out" / "private_start.json").exists()
    trainer.train(resume_from_checkpoint=resume and started)
    return trainer


def weights(trainer: PrivateTrainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


if __name__ == "__main__":
    where = Path(sys.argv[1])
    done = train(where, resume="resume" in sys.argv)
    rank = os.environ.get("RANK", "0")
    (where / f"weights.{rank}.json").write_text(json.dumps(weights(done).tolist()))
    if dist.is_initialized():
        end_processes(where)
