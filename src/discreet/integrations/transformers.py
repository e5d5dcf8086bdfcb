"""Private training with the Hugging Face Trainer.

    trainer = PrivateTrainer(model, args, train_dataset=rows, processing_class=tokenizer,
                             protect=DPSGD(epsilon=8), groups="patient_id")
    trainer.train()
    print(trainer.guarantee)

Arguments, evaluation, schedulers, callbacks and checkpoints are those of `transformers.Trainer`. What differs: batches
are drawn by Poisson sampling of units, every row has its own loss, gradients are clipped and noised by `make_private`,
nothing that is computed from private rows is logged, and the model is evaluated on other rows than it is trained on.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from discreet.accounting.ledger import Ledger, Terms
from discreet.clipping.forwards import find_layers
from discreet.core.errors import DataError, Message, ModelError, UnsupportedError, in_python, invalid, setting
from discreet.core.files import write_atomic
from discreet.core.guarantee import CHOICE, HELD_OUT, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.data.people_columns import column_of_people
from discreet.data.sources import unit_word
from discreet.data.tables import Table
from discreet.integrations.held_out import TrainedRows
from discreet.integrations.losses import IGNORED, RowLosses, row_losses, task_of
from discreet.integrations.rows import Rows, column_of, plain_ids
from discreet.integrations.torch import PrivateTraining, make_private
from discreet.protections.base import Protection, check_protection
from discreet.runs.folder import STATED, guarantee_with_digests

STATE = "private_state.json"  # in a checkpoint: how far the ledger had come
START = "private_start.json"  # in the output folder, from before the first step
LEDGER = "ledger.jsonl"
GUARANTEE = "guarantee.json"
_TRAINER_STATE = "trainer_state.json"
# What the Trainer would log, and what is a function of private rows: losses, counts of tokens, and times.
_PRIVATE_LOGS = frozenset(
    {
        "loss",
        "train_loss",
        "total_flos",
        "num_input_tokens_seen",
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_tokens_per_second",
    }
)
_READ = 2_000  # rows, at most, to find a column that tells whose they are
_EACH_ROW = "row"  # as a unit
_LOADED = "the checkpoint that is loaded at the end is chosen by {metric} on held-out rows"
_SAVED = "which checkpoints are saved is chosen by {metric} on held-out rows"
_ENDED = "the training may end early by {metric} on held-out rows; the cost is that of all planned steps"
_LIBRARIES = ("transformers.", "trl.", "discreet.")
_MADE_UP_ROWS, _MADE_UP_TOKENS = 8, 12


_Trainer: Any = object  # whatever Trainer the mixin is put before, for the type checker


class PrivateTrainerMixin(_Trainer):  # type: ignore[misc]
    """What makes a Trainer private; `PrivateTrainer` is the one of transformers with it.

    For a Trainer of another library, put it first: `class PrivateSFTTrainer(PrivateTrainerMixin, SFTTrainer)`.
    """

    def __init__(
        self,
        *args: Any,
        protect: Protection,
        groups: str | Sequence[Any] | None = None,
        unit: str | None = None,
        population: int | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        secret: Rng | str | os.PathLike[str] | None = None,
        loss_fn: RowLosses | None = None,
        made_up: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the arguments of a Trainer, and what is private.

        Datasets to evaluate on must have no row and no unit of the train dataset. A batch holds
        `per_device_train_batch_size * gradient_accumulation_steps * world_size` units on average, in parts of at most
        `per_device_train_batch_size` rows.

        Args:
            protect: `DPSGD` or `DirDPSGD`, with a budget or with its noise.
            groups: The column of the train dataset that tells whose row it is, or the ids themselves; without it, or
                with "row", each row is a unit.
            unit: The word for a unit in the guarantee; by default that of the column, such as patient for
                patient_id. It needs `groups`.
            population: A public number in place of the number of units, as in `make_private`.
            ledger: By default a file in the output folder.
            secret: A path outside of the output folder that keeps the seed of batches and noise until the last step, so
                that a resumed training repeats them; otherwise what is lost is drawn anew and counted again.
            loss_fn: Returns one loss for each row from the model and its inputs, for models of other tasks.
            made_up: Rows that belong to nobody, on which it is checked that rows do not change each other; for
                tokenized text they are made by themselves.
        """
        check_protection(protect, "gradient")
        if unit is not None and groups is None:
            raise DataError(
                f"Expected {setting('groups')}, the column or the ids of whose row each is, because "
                f"{setting('unit', unit)} was set; got none. Pass it to protect each {unit}, or confirm that each row "
                f"is one ({setting('groups', _EACH_ROW)})."
            )
        self._trained_rows: TrainedRows | None = None
        super().__init__(*args, **kwargs)
        self.protect, self.groups, self.unit, self.population = protect, groups, unit, population
        self.private: PrivateTraining | None = None
        self._planned_epsilon: float | None = None  # for the log
        self._at_end: Guarantee | None = None  # before a checkpoint was loaded at the end
        self._ledger, self._secret, self._made_up = ledger, secret, made_up
        self._check_trainer()
        self.args: Any = copy.copy(self.args)
        given = self.args
        self.expected_batch = (
            given.per_device_train_batch_size * given.gradient_accumulation_steps * max(1, given.world_size)
        )
        given.gradient_accumulation_steps = 1  # a step of the Trainer is a whole batch; its parts are ours
        self._loss_fn = loss_fn or row_losses(task_of(self.model))
        find_layers(self.model)  # rejects what cannot be clipped
        self._read_units()
        for warning in self._columns_of_people() if groups is None else []:
            warnings.warn(warning.worded(_spelled).removeprefix("Warning: "), stacklevel=2)

    # What a step is

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that only counts steps; the batches are drawn inside a step, in secret."""
        count = self._unit_count()
        size = min(self.expected_batch, count)
        if size < self.expected_batch:
            remedy = "Use a smaller per_device_train_batch_size or gradient_accumulation_steps."
            raise invalid("batch size", self.expected_batch, f"<= {count:,}, the number of units", remedy)
        steps = self.protect.sampler_for(size, count).steps_per_epoch(count)
        return DataLoader(range(steps), batch_size=1, collate_fn=_nothing)  # type: ignore[arg-type]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Draw a batch and leave its protected gradient in the parameters; the loss of private rows is not returned."""
        assert self.private is not None
        self.model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        if not self.private.gradients(self._rows, self._losses):
            self.control.should_training_stop = True
        return torch.zeros((), device=self.args.device)

    def _losses(self, inputs: Any) -> Tensor:
        with self.compute_loss_context_manager():
            return self._loss_fn(self.model, self._prepare_inputs(inputs))

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Do nothing: every unit's gradient was clipped before the noise was added."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        """Return the norm of the protected gradient, which stays as it is."""
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def floating_point_ops(self, inputs: Any) -> int:
        """Return zero: the number of private tokens is not counted."""
        return 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Do nothing: the number of private tokens is not counted."""

    # Start, stop, resume

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train, or resume from a checkpoint; True is the last complete one in the output folder.

        The result has no training loss: it is computed from private rows.
        """
        if kwargs.get("trial") is not None:
            raise UnsupportedError(
                "Expected no hyperparameter search: every trial is a training that spends. Train with fixed settings."
            )
        self._read_units()
        folder = Path(self.args.output_dir)
        self._from_start = False
        if resume_from_checkpoint is True:
            resume_from_checkpoint = _last_checkpoint(folder)
            self._from_start = resume_from_checkpoint is None
            if self._from_start and not (folder / START).exists():
                raise ModelError(
                    f"Expected a complete checkpoint in {str(folder)!r}, got none. Leave resume_from_checkpoint out."
                )
        elif resume_from_checkpoint and not _is_complete(Path(resume_from_checkpoint)):
            raise ModelError(
                f"Expected a complete checkpoint with {STATE} at {resume_from_checkpoint!r}. Without it nobody knows "
                "which steps the ledger counted; resume from another checkpoint, or train from the beginning."
            )
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            if self.private is not None:
                self.private.close()
            if max(1, self.args.world_size) > 1:
                # The wrapper for several processes keeps their group, whose threads then outlive destroy_process_group.
                self.model_wrapped = self.model
                self.accelerator.free_memory()
        metrics = {name: value for name, value in output.metrics.items() if name not in _PRIVATE_LOGS}
        return output._replace(training_loss=float("nan"), metrics=metrics)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        count = {"population": self.population} if self.population is not None else {"num_units": self._unit_count()}
        name = self.groups if isinstance(self.groups, str) else _EACH_ROW if self.groups is None else "unit"
        self.private = make_private(
            self.model,
            self.protect,
            batch_size=self.expected_batch,
            steps=max_steps,
            unit=unit_word(name) if self.unit is None else self.unit,
            ledger=folder / LEDGER if self._ledger is None else self._ledger,
            secret=self._secret,
            **count,
        )
        self._planned_epsilon = self._at_end = None
        if self.is_world_process_zero():
            self.private.ledger.state(Terms((HELD_OUT, CHOICE, *self._choices())))
        self.private.check_optimizer(self.optimizer)
        # The collator leaves out what the model does not take, such as the column with the unit.
        collate = self._get_collator_with_removed_columns(self.data_collator)
        if resume_from_checkpoint is not None:
            self.private.load_state_dict(_read(Path(resume_from_checkpoint) / STATE))
        elif self._from_start:
            self.private.load_state_dict(_read(folder / START))
        size = self.args.per_device_train_batch_size
        self._rows: Rows = self.private.rows(self.train_dataset, collate, groups=self._unit_ids, max_rows=size)
        if resume_from_checkpoint is None and not self._from_start and self.is_world_process_zero():
            write_atomic(folder / START, json.dumps(self.private.state_dict()), private=False)
        made_up = self._made_up if self._made_up is not None else self._made_up_rows(collate)
        if made_up is not None:
            self.private.check(self._losses, made_up, collate)
        return prepared

    def _choices(self) -> list[str]:
        """Return how figures of held-out rows choose a checkpoint or the end of the training, in sentences."""
        given, name = self.args, self.args.metric_for_best_model or "loss"
        metric = name if name.startswith("eval_") else f"eval_{name}"
        early = any(isinstance(one, transformers.EarlyStoppingCallback) for one in self.callback_handler.callbacks)
        chosen = [
            (given.load_best_model_at_end, _LOADED),
            (given.save_strategy == transformers.trainer_utils.SaveStrategy.BEST, _SAVED),
            (early, _ENDED),
        ]
        return [sentence.format(metric=metric) for applies, sentence in chosen if applies]

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate on held-out rows; rows and units of the train dataset are rejected, before any of them is read."""
        self._check_held_out(self._held_out(eval_dataset), "eval_dataset")
        return super().evaluate(eval_dataset, *args, **kwargs)  # type: ignore[no-any-return]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return a loader of held-out rows; rows and units of the train dataset are rejected."""
        self._check_held_out(self._held_out(eval_dataset), "eval_dataset")
        return super().get_eval_dataloader(eval_dataset)  # type: ignore[no-any-return]

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return a loader of rows to predict; rows and units of the train dataset are rejected."""
        self._check_held_out(test_dataset, "test_dataset")
        return super().get_test_dataloader(test_dataset)  # type: ignore[no-any-return]

    def _load_best_model(self) -> None:
        """Count all planned steps, and load the checkpoint that held-out rows chose."""
        if self.private is not None:
            self.private.close()
            if self.is_world_process_zero():
                self._at_end = self.private.guarantee  # which does not expect other weights than the last ones
        super()._load_best_model()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its guarantee: `guarantee.json`, and the model card."""
        super().save_model(output_dir, _internal_call=_internal_call)
        if self.private is None or not self.is_world_process_zero():
            return
        folder = Path(output_dir if output_dir is not None else self.args.output_dir)
        guarantee = self.guarantee
        values = guarantee_with_digests(guarantee, folder, self.private.ledger.statement)
        write_atomic(folder / GUARANTEE, json.dumps(values, indent=2) + "\n", private=False)
        add_to_card(folder / "README.md", guarantee, type(self.model).__name__)
        if _internal_call:  # of a checkpoint, whose other files are written after this one
            write_atomic(folder / STATE, json.dumps(self.private.state_dict()), private=False)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the Trainer's model card, with the guarantee in it."""
        super().create_model_card(*args, **kwargs)
        if self.private is not None and self.is_world_process_zero():
            add_to_card(Path(self.args.output_dir) / "README.md", self.guarantee, type(self.model).__name__)

    # What it says

    @property
    def guarantee(self) -> Guarantee:
        """What the training guarantees with all steps that are planned; on rank 0."""
        if self.private is None:
            raise UnsupportedError("Expected a training that has begun. Call train() first.")
        return self.private.guarantee if self._at_end is None else self._at_end

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log without what was computed from private rows, and with the epsilon of the whole training.

        Its name is `privacy/epsilon`, or `privacy/epsilon_estimate` where the guarantee has a caveat. It is that of all
        planned steps from the first entry on: a training that is ended early costs as much.
        """
        public = {name: value for name, value in logs.items() if name not in _PRIVATE_LOGS}
        evaluates = any(name.startswith("eval") for name in logs)
        if self.private is not None and self.is_world_process_zero() and not evaluates:
            if self._planned_epsilon is None:
                self._planned_epsilon = self.guarantee.epsilon
            caveats = self.private.caveats if self._at_end is None else self._at_end.caveats
            name = "privacy/epsilon_estimate" if caveats else "privacy/epsilon"
            public |= {name: self._planned_epsilon, "privacy/delta": self.private.delta}
        super().log(public)  # with a start time it would add the speed, which depends on private rows

    # What is rejected

    def _check_trainer(self) -> None:
        for name in ("compute_loss", "training_step", "get_train_dataloader"):
            method = getattr(type(self), name)
            if not method.__module__.startswith(_LIBRARIES):
                raise UnsupportedError(
                    f"Expected {type(self).__name__} without a {name} of its own, got {method.__qualname__}. It would "
                    "bypass the protection: a scalar loss has mixed the rows, and a loader draws its own batches. "
                    f"Pass {setting('loss_fn')}, which returns one loss for each row."
                )
        if self.compute_loss_func is not None:
            raise UnsupportedError(
                "Expected no compute_loss_func, which returns one loss for a whole batch. Pass "
                f"{setting('loss_fn')}, which returns one loss for each row."
            )
        metric = self.args.metric_for_best_model
        if metric is not None and metric != "loss" and metric in _PRIVATE_LOGS:
            remedy = "Training rows have no figures: nothing that is computed from them is logged."
            raise invalid("metric_for_best_model", metric, "a figure of held-out rows, such as 'eval_loss'", remedy)
        rows: Any = self.train_dataset
        if isinstance(rows, DataLoader | IterableDataset) or not hasattr(rows, "__getitem__"):
            raise UnsupportedError(
                f"Expected train_dataset to be a map-style dataset, got {type(rows).__name__}. A loader or a stream "
                "draws its own batches, which the guarantee cannot count."
            )
        given = self.args
        switched_off = {
            "fp16": "Use bf16.",
            "torch_compile": "What is compiled cannot be clipped layer by layer.",
            "gradient_checkpointing": "It runs the forward pass twice.",
            "auto_find_batch_size": "A retry would spend again.",
            "label_smoothing_factor": "Pass a loss_fn that smooths each row's labels.",
            "deepspeed": "Use torchrun, with the whole model on each device.",
            "fsdp": "Use torchrun, with the whole model on each device.",
            "use_liger_kernel": "Its fused loss has mixed the rows.",
            "packing": "It puts texts of several units into one row.",  # of trl's SFTConfig
            "padding_free": "It puts all rows of a batch into one.",
        }
        for name, remedy in switched_off.items():
            if getattr(given, name, None):
                raise invalid(name, getattr(given, name), "off for a private training", remedy)
        if given.n_gpu > 1:
            raise invalid("n_gpu", given.n_gpu, "1", "Use torchrun, with one process for each GPU.")
        kept = None if self._secret is None or isinstance(self._secret, Rng) else Path(self._secret).resolve()
        if kept is not None and Path(given.output_dir).resolve() in kept.parents:
            remedy = "That folder is shared with the model, and whoever has the secret can remove the noise."
            raise invalid("secret", str(kept), "a path outside of output_dir", remedy)

    # What is known of the rows

    def _ids(self) -> list[Any] | None:
        """Return the id of each row's unit, or None where each row is one."""
        groups, rows = self.groups, self.train_dataset
        if groups is None or (groups == _EACH_ROW and _EACH_ROW not in self._columns()):
            return None
        if not isinstance(groups, str):
            return plain_ids(groups)
        if hasattr(rows, "column_names") and groups not in rows.column_names:
            raise DataError(f"Expected a column {groups!r} in the train dataset, got {', '.join(rows.column_names)}.")
        try:
            return column_of(rows, groups)
        except (KeyError, TypeError):
            raise DataError(
                f"Expected {groups!r} in every row of the train dataset. Keep that column when the text is tokenized."
            ) from None

    def _read_units(self) -> None:
        """Read the ids of the units, and reject held-out rows that belong to them."""
        if self._trained_rows is None or self._trained_rows.dataset is not self.train_dataset:
            self._unit_ids = self._ids()
            column = self.groups if isinstance(self.groups, str) else None
            units = None if self._unit_ids is None else set(self._unit_ids)
            self._trained_rows = TrainedRows(self.train_dataset, column, units, self._inputs)
        self._check_held_out(self.eval_dataset, "eval_dataset")

    def _held_out(self, dataset: Any) -> Any:
        """Return a dataset to evaluate on: as given, the one of that name, or the one of the Trainer."""
        if isinstance(dataset, str):
            return self.eval_dataset[dataset]
        return self.eval_dataset if dataset is None else dataset

    def _check_held_out(self, dataset: Any, name: str) -> None:
        if dataset is not None and self._trained_rows is not None:
            self._trained_rows.check(dataset, name)

    def _inputs(self) -> list[str]:
        """Return the columns that the model takes."""
        self._set_signature_columns_if_needed()
        return list(self._signature_columns)

    def _columns(self) -> tuple[str, ...]:
        """Return the names of the columns of the train dataset; none where its rows have no names."""
        rows: Any = self.train_dataset
        if hasattr(rows, "column_names"):
            return tuple(rows.column_names)
        first = rows[0] if len(rows) else None
        return tuple(first) if isinstance(first, Mapping) else ()

    def _columns_of_people(self) -> list[Message]:
        """Return a warning if the train dataset has a column that seems to tell whose row it is."""
        rows: Any = self.train_dataset
        whole = hasattr(rows, "column_names")
        few = range(min(len(rows), _READ))

        def read(name: str) -> list[Any]:
            return list(rows[:_READ][name]) if whole else [rows[number].get(name) for number in few]

        return column_of_people(Table("the train dataset", self._columns(), len(rows), read), self._inputs())

    def _unit_count(self) -> int:
        if self.population is not None:
            return self.population
        return len(self.train_dataset) if self._unit_ids is None else len(set(self._unit_ids))

    def _made_up_rows(self, collate: Callable[[list[Any]], Any]) -> list[dict[str, Any]] | None:
        """Return rows of random tokens with the columns of the dataset; None where a column is not known.

        Of the dataset only the names of the columns are read, whether labels are lists and, for a collator that does
        not pad, the one length that all rows then have.
        """
        first: Any = self.train_dataset[0]
        vocabulary = getattr(self.model.config, "vocab_size", None)
        if not isinstance(first, Mapping) or not vocabulary or "input_ids" not in first:
            return None
        self._set_signature_columns_if_needed()
        names = [name for name in first if name in self._signature_columns]
        makers: dict[str, Callable[[list[int], int], Any]] = {
            "input_ids": lambda ids, row: ids,
            "attention_mask": lambda ids, row: [1] * len(ids),
            "token_type_ids": lambda ids, row: [0] * len(ids),
            "labels": self._made_up_label,
            "label": self._made_up_label,
        }
        if any(name not in makers for name in names):
            return None
        spread = [3 + row * (_MADE_UP_TOKENS - 3) // (_MADE_UP_ROWS - 1) for row in range(_MADE_UP_ROWS)]
        for lengths in (spread, [len(first["input_ids"])] * _MADE_UP_ROWS):
            random = Rng(0).numpy()
            texts = [random.integers(1, vocabulary, size).tolist() for size in lengths]
            rows = [{name: makers[name](ids, row) for name in names} for row, ids in enumerate(texts)]
            with suppress(Exception):  # whatever the user's collator raises for rows that it was not made for
                collate(rows)
                return rows
        return None

    def _made_up_label(self, ids: list[int], row: int) -> Any:
        first: Any = self.train_dataset[0]
        like = first["labels"] if "labels" in first else first["label"]
        like = like.tolist() if isinstance(like, Tensor) else like
        count = max(1, self.model.config.num_labels)
        if isinstance(like, list | tuple):
            numbers = type(like[0]) if like else int
            if len(like) == count and numbers is float:
                return [float(row % 2)] * count
            return [IGNORED if place == 0 else one % count for place, one in enumerate(ids)]
        return float(row) if isinstance(like, float) else row % count


class PrivateTrainer(PrivateTrainerMixin, transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` with differential privacy for each unit of the train dataset.

    Guarantee: `guarantee`, of all steps that are planned, which `save_model` writes next to the weights. Figures of
        utility are computed on held-out rows, which are not protected; rows and units of the train dataset are
        rejected there.

    ```python
    trainer = PrivateTrainer(
        model, arguments, train_dataset=rows, processing_class=tokenizer, protect=DPSGD(epsilon=8), groups="patient_id"
    )
    trainer.train()
    print(trainer.guarantee)
    ```
    """


def _spelled(name: str, value: object) -> str | None:
    """Return a setting as an argument of the Trainer, which has the ids of the units in `groups`."""
    return in_python("groups", value) if name == "unit" else None


def add_to_card(path: Path, guarantee: Guarantee, name: str) -> None:
    """Write the guarantee into a model card: its values in the front matter, its sentences in a section."""
    from huggingface_hub import ModelCard

    heading = "## Differential privacy"
    card: Any = ModelCard(path.read_text(encoding="utf-8") if path.exists() else f"---\n{{}}\n---\n# {name}\n")
    tags = list(card.data.tags or [])
    card.data.tags = [*tags, *(tag for tag in ["differential-privacy"] if tag not in tags)]
    values = json.loads(json.dumps(guarantee.as_dict()))  # plain values alone, for YAML
    card.data.differential_privacy = {key: values[key] for key in STATED}
    text = card.text.partition(heading)[0].rstrip()
    budget = f"epsilon {in_digits(guarantee.epsilon)}, delta {in_digits(guarantee.delta)}"
    about = f"Trained with `discreet`: {budget} for each {guarantee.unit}.\n\n{guarantee.sentence()}"
    card.text = f"{text}\n\n{heading}\n\n{about}\n"
    write_atomic(path, str(card), private=False)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _is_complete(folder: Path) -> bool:
    """Return whether a checkpoint was written to its end: the Trainer's state is the last of its files."""
    try:
        # The last step of a training whose budget is used up releases nothing.
        return bool(0 <= _read(folder / _TRAINER_STATE)["global_step"] - _read(folder / STATE)["position"] <= 1)
    except (OSError, ValueError, KeyError):
        return False


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last complete checkpoint in a folder."""
    complete = [path for path in folder.glob("checkpoint-*") if _is_complete(path)]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None
