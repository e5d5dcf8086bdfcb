"""The private Trainer: the weights of our own loop, what it logs, saves and rejects, and how it resumes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from transformers import TrainingArguments

from discreet import DPSGD, DirDPSGD, Ledger, Rng, make_private
from discreet.core.errors import DataError, LedgerError, ModelError, SettingError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.integrations.losses import mean_over_tokens, row_losses, task_of
from discreet.integrations.rows import unit_numbers
from discreet.integrations.transformers import GUARANTEE, LEDGER, START, STATE, PrivateTrainer

logging.getLogger("transformers").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers and accelerate
ROWS, PEOPLE, WIDTH = 48, 16, 8
NOISE = DPSGD(noise_multiplier=1.0, clip_norm=0.5)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}


def bert(seed: int = 1, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SIZES, max_position_embeddings=16, num_labels=3, **changes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.BertForSequenceClassification(config)


def rows(count: int = ROWS, labels: str = "one") -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    found: list[dict[str, Any]] = []
    for row in range(count):
        ids = torch.randint(1, 40, (3 + row % (WIDTH - 2),), generator=generator).tolist()
        values: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * len(ids), "patient_id": f"p{row % PEOPLE}"}
        values["labels"] = row % 3 if labels == "one" else [one % 3 for one in ids] if labels == "tokens" else ids
        found.append(values)
    return found


def held_out(count: int = 8) -> list[dict[str, Any]]:
    """Rows of other people; some of them are equal to rows of the train dataset."""
    return [row | {"patient_id": f"held out {number}"} for number, row in enumerate(rows(count))]


def padded(chosen: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad to a fixed width, labels with -100."""
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}

    def column(name: str) -> Tensor:
        values = [row[name] for row in chosen]
        if not isinstance(values[0], list):
            return torch.tensor(values)
        return torch.tensor([value + [fill[name]] * (WIDTH + 4 - len(value)) for value in values])

    return {name: column(name) for name in chosen[0] if name in fill}


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "weight_decay": 0.0,
    }
    return TrainingArguments(**settings | changes)


def trainer(folder: Path, model: nn.Module | None = None, changes: Any = None, **settings: Any) -> PrivateTrainer:
    given: dict[str, Any] = {"protect": NOISE, "groups": "patient_id", "secret": Rng(3)} | settings
    given = {"train_dataset": rows(), "data_collator": padded} | given
    return PrivateTrainer(model if model is not None else bert(), arguments(folder, **changes or {}), **given)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def test_ids_in_tensors_are_people_as_numbers_are(tmp_path: Path) -> None:
    """Of a dataset in torch's format each id is a tensor; two tensors with the same number count as two in a set."""
    numbered = [{**row, "patient_id": torch.tensor(int(row["patient_id"][1:]))} for row in rows()]
    trained = trainer(tmp_path, train_dataset=numbered)
    assert trained._unit_count() == PEOPLE
    assert len(set(unit_numbers(numbered, "patient_id").tolist())) == PEOPLE
    assert len(set(unit_numbers(numbered, [row["patient_id"] for row in numbered]).tolist())) == PEOPLE


@pytest.mark.parametrize("protect", [NOISE, DirDPSGD(kappa=100.0)])
def test_it_ends_with_the_weights_of_our_own_loop(tmp_path: Path, protect: Any) -> None:
    ours, theirs = bert(), bert()
    trained = trainer(tmp_path, theirs, protect=protect)
    trained.train()
    fused = trained.optimizer.optimizer.defaults["fused"]
    again = torch.optim.AdamW(ours.parameters(), lr=0.01, weight_decay=0.0, fused=fused)
    people = [row["patient_id"] for row in rows()]
    with make_private(ours, protect, num_units=PEOPLE, batch_size=8, steps=6, secret=Rng(3), unit="patient") as private:
        for part in private.batches(rows(), padded, groups=people, max_rows=4):
            logits = ours(part["input_ids"], attention_mask=part["attention_mask"]).logits
            private.step(F.cross_entropy(logits, part["labels"], reduction="none"), again)
    assert float((flat(ours) - flat(theirs)).abs().max()) < 1e-6
    assert float((flat(ours) - flat(bert())).abs().max()) > 1e-3
    assert trained.state.global_step == 6 == trained.private.position  # type: ignore[union-attr]
    assert Ledger.read(tmp_path / "out" / LEDGER).spends == 6


def test_what_is_logged_and_returned_holds_no_loss_of_private_rows(tmp_path: Path) -> None:
    changes = {"eval_strategy": "steps", "eval_steps": 3, "include_num_input_tokens_seen": True}
    trained = trainer(tmp_path, eval_dataset=held_out(), changes=changes)
    result = trained.train()
    logged = [entry for entry in trained.state.log_history if "learning_rate" in entry]
    assert len(logged) == 3 and not any("loss" in entry or "train_loss" in entry for entry in logged)
    figures = [entry["privacy/epsilon_estimate"] for entry in logged]
    assert figures == [trained.guarantee.epsilon] * 3, "the cost of all planned steps, from the first entry on"
    assert all(entry["privacy/delta"] == 1e-5 for entry in logged)
    assert sum("eval_loss" in entry for entry in trained.state.log_history) == 2
    assert not any("per_second" in key or "runtime" in key for key in keys_of(trained) if "eval" not in key)
    assert all(entry["num_input_tokens_seen"] == 0 for entry in logged), "a constant, whatever the rows hold"
    assert result.training_loss != result.training_loss and result.metrics == {}


def keys_of(trained: PrivateTrainer) -> set[str]:
    return {key for entry in trained.state.log_history for key in entry}


@pytest.mark.parametrize("unit", [None, "patient_id"])
def test_a_secret_training_on_fixed_shapes_is_certified(tmp_path: Path, unit: str | None) -> None:
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    trained = trainer(tmp_path, protect=DPSGD(epsilon=8), secret=None, groups=unit, changes=sizes)
    trained.train()
    found = trained.guarantee
    assert found.certified and 7 < found.epsilon <= 8 and found.unit == ("row" if unit is None else "patient")
    sizes_tried = trained.private._check._kernels._outcomes  # type: ignore[union-attr]
    assert {size for size, _ in sizes_tried} == {(8, 1) if unit is None else (2, 3)}
    assert None not in sizes_tried.values()
    assert found.epsilon <= trained.state.log_history[-1]["privacy/epsilon"] < 8.5


def test_padding_to_the_longest_row_is_an_estimate(tmp_path: Path) -> None:
    def longest(chosen: list[dict[str, Any]]) -> dict[str, Tensor]:
        width = max(len(row["input_ids"]) for row in chosen)
        return {name: value[:, :width] if value.dim() == 2 else value for name, value in padded(chosen).items()}

    trained = trainer(tmp_path, protect=DPSGD(epsilon=8), secret=None, data_collator=longest, groups=None)
    trained.train()
    assert trained.guarantee.caveats == {Caveat.UNSTEADY_KERNELS}


def test_epochs_are_counted_in_units(tmp_path: Path) -> None:
    trained = trainer(tmp_path, changes={"max_steps": -1, "num_train_epochs": 1.5}, groups=None)
    trained.train()
    assert trained.state.global_step == 9 and trained.state.epoch == pytest.approx(1.5)
    assert trained.guarantee.unit == "row"


def test_saving_writes_the_guarantee_and_the_model_card(tmp_path: Path) -> None:
    trained = trainer(tmp_path)
    trained.train()
    trained.save_model(str(tmp_path / "model"))
    stored = Guarantee.from_dict(json.loads((tmp_path / "model" / GUARANTEE).read_text()))
    assert stored.epsilon == trained.guarantee.epsilon and Caveat.FIXED_SEED in stored.caveats
    found = ModelCard.load(tmp_path / "model" / "README.md")
    assert found.data.differential_privacy["epsilon"] == stored.epsilon
    assert found.data.differential_privacy["unit"] == "patient" and "differential-privacy" in found.data.tags
    assert "Estimate" in found.text and found.text.count("## Differential privacy") == 1
    same = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert torch.equal(flat(same), flat(trained.model))
    trained.save_model(str(tmp_path / "model"))
    assert ModelCard.load(tmp_path / "model" / "README.md").text.count("## Differential privacy") == 1


class TestTasks:
    def check(self, tmp_path: Path, model: nn.Module, task: str, labels: str) -> None:
        before = flat(model)
        assert task_of(model) == task
        given = {"train_dataset": rows(labels=labels), "groups": None, "secret": None}
        trained = trainer(tmp_path, model, protect=DPSGD(epsilon=8), **given)
        trained.train()
        assert trained.guarantee.certified and float((flat(model) - before).abs().max()) > 1e-4

    def test_token_classification(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, max_position_embeddings=16, num_labels=3)
        model = transformers.BertForTokenClassification(config)
        self.check(tmp_path, model, "token classification", "tokens")

    def test_masked_language_model(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, max_position_embeddings=16)  # tied embeddings
        self.check(tmp_path, transformers.BertForMaskedLM(config), "masked LM", "text")

    @pytest.mark.parametrize("tied", [False, True])
    def test_causal_language_model(self, tmp_path: Path, tied: bool) -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**SIZES, max_position_embeddings=16, tie_word_embeddings=tied)
        self.check(tmp_path, transformers.LlamaForCausalLM(config), "causal LM", "text")

    def test_seq2seq_language_model(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
        self.check(tmp_path, model, "seq2seq LM", "text")

    def test_peft(self, tmp_path: Path) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        config = transformers.LlamaConfig(**SIZES, max_position_embeddings=16)  # tied, and frozen
        lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(transformers.LlamaForCausalLM(config), lora)
        self.check(tmp_path, model, "causal LM", "text")

    def test_losses_are_those_of_the_model_for_one_row(self) -> None:
        for model, labels in ((bert(), "one"), (llama(), "text"), (bart(), "text")):
            model.eval()
            losses = row_losses(task_of(model))(model, padded(rows(5, labels)))
            assert losses.shape == (5,)
            for row, loss in zip(rows(5, labels), losses, strict=True):
                assert float(loss) == pytest.approx(float(model(**padded([row])).loss), abs=1e-5)

    def test_regression_and_several_labels(self) -> None:
        model = bert(problem_type="regression")
        model.config.num_labels = 1
        inputs = padded(rows(4)) | {"labels": torch.randn(4, 3)}
        expected = (model(**{k: v for k, v in inputs.items() if k != "labels"}).logits - inputs["labels"]).square()
        assert torch.allclose(row_losses("sequence classification")(model, inputs), expected.mean(1))
        model.config.problem_type = "multi_label_classification"
        several = inputs | {"labels": (inputs["labels"] > 0).float()}
        assert row_losses("sequence classification")(model, several).shape == (4,)

    def test_rows_without_labels_have_no_loss(self) -> None:
        assert mean_over_tokens(torch.randn(2, 3, 4), torch.full((2, 3), -100)).tolist() == [0.0, 0.0]
        with pytest.raises(UnsupportedError, match="labels"):
            row_losses("causal LM")(llama(), {"input_ids": torch.ones(1, 2)})

    def test_a_loss_function_of_your_own(self, tmp_path: Path) -> None:
        def squared(model: nn.Module, inputs: Any) -> Tensor:
            logits = model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            return (logits.softmax(1) - F.one_hot(inputs["labels"], 3)).square().sum(1)

        trained = trainer(tmp_path, loss_fn=squared, secret=None, groups=None, protect=DPSGD(epsilon=8))
        trained.train()
        assert trained.guarantee.certified

    def test_bf16(self, tmp_path: Path) -> None:
        trained = trainer(tmp_path, changes={"bf16": True})
        trained.train()
        other = trainer(tmp_path / "other")
        other.train()
        difference = float((flat(trained.model) - flat(other.model)).abs().max())
        assert 0 < difference < 0.1


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, max_position_embeddings=16))


def bart() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 40, "max_position_embeddings": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))


class TestRejected:
    def test_an_overridden_compute_loss_or_loader(self, tmp_path: Path) -> None:
        class Own(PrivateTrainer):
            def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
                return model(**inputs).loss

        class Loader(PrivateTrainer):
            def get_train_dataloader(self) -> Any:
                return DataLoader(self.train_dataset, shuffle=True)

        for kind, name in ((Own, "compute_loss"), (Loader, "get_train_dataloader")):
            with pytest.raises(UnsupportedError, match=name):
                kind(bert(), arguments(tmp_path), train_dataset=rows(), protect=NOISE)
        with pytest.raises(UnsupportedError, match="compute_loss_func"):
            trainer(tmp_path, compute_loss_func=lambda *_, **__: 0)

    def test_a_shuffled_loader_or_a_stream(self, tmp_path: Path) -> None:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter(rows())

        for dataset in (DataLoader(TensorDataset(torch.ones(3)), shuffle=True), Stream()):
            with pytest.raises(UnsupportedError, match="map-style"):
                trainer(tmp_path, train_dataset=dataset)

    @pytest.mark.parametrize(
        "changes", [{"label_smoothing_factor": 0.1}, {"gradient_checkpointing": True}, {"auto_find_batch_size": True}]
    )
    def test_settings_that_mix_rows_or_spend_twice(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match=next(iter(changes))):
            trainer(tmp_path, changes=changes)

    def test_packed_rows_of_trl(self, tmp_path: Path) -> None:
        for name in ("packing", "padding_free"):
            args = arguments(tmp_path)
            setattr(args, name, True)
            with pytest.raises(SettingError, match=name):
                PrivateTrainer(bert(), args, train_dataset=rows(), protect=NOISE)

    def test_layers_tasks_units_and_secrets(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedError, match="loss_fn"):
            trainer(tmp_path, transformers.BertModel(transformers.BertConfig(**SIZES)))
        model = bert()
        model.add_module("norm", nn.BatchNorm1d(3))
        with pytest.raises(UnsupportedError, match="norm"):
            trainer(tmp_path, model)
        with pytest.raises(DataError, match="author"):
            trainer(tmp_path, groups="author")
        with pytest.raises(SettingError, match="output_dir"):
            trainer(tmp_path, secret=tmp_path / "out" / "secret")
        with pytest.raises(SettingError, match="batch size"):
            trainer(tmp_path, changes={"gradient_accumulation_steps": 5}).train()
        with pytest.raises(UnsupportedError, match="train"):
            _ = trainer(tmp_path).guarantee


class TestResume:
    def make(self, folder: Path, secret: Any, **changes: Any) -> PrivateTrainer:
        saves = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
        return trainer(folder, changes=saves | changes, secret=secret)

    def stop_at(self, step: int) -> transformers.TrainerCallback:
        class Killed(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                if state.global_step == step:
                    raise KeyboardInterrupt

        return Killed()

    def stopped(self, folder: Path, secret: Any, step: int = 5) -> None:
        trained = self.make(folder, secret)
        trained.add_callback(self.stop_at(step))
        with pytest.raises(KeyboardInterrupt):
            trained.train()

    def test_with_its_secret_it_ends_with_the_same_weights_and_the_same_cost(self, tmp_path: Path) -> None:
        undisturbed = self.make(tmp_path / "whole", Rng(3))
        undisturbed.train()
        self.stopped(tmp_path, Rng(3))
        state = json.loads((tmp_path / "out" / "checkpoint-4" / STATE).read_text())
        assert state["position"] == 4
        resumed = self.make(tmp_path, Rng(3))
        resumed.train(resume_from_checkpoint=True)
        assert torch.equal(flat(resumed.model), flat(undisturbed.model))
        assert Ledger.read(tmp_path / "out" / LEDGER).spends == 6
        assert resumed.state.epoch == undisturbed.state.epoch

    def test_before_the_first_checkpoint_it_starts_again_with_the_same_draws(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        self.stopped(tmp_path, secret, step=1)
        assert secret.exists() and (tmp_path / "out" / START).exists()
        resumed = self.make(tmp_path, secret)
        resumed.train(resume_from_checkpoint=True)
        assert Ledger.read(tmp_path / "out" / LEDGER).spends == 6 and not secret.exists()

    def test_without_its_secret_what_is_lost_is_counted_again(self, tmp_path: Path) -> None:
        self.stopped(tmp_path, None)
        resumed = self.make(tmp_path, None)
        resumed.train(resume_from_checkpoint=True)
        assert Ledger.read(tmp_path / "out" / LEDGER).spends == 8  # all six of the first, which was stopped, and two

    def test_an_incomplete_checkpoint_is_passed_over(self, tmp_path: Path) -> None:
        self.stopped(tmp_path, Rng(3))
        (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").write_text('{"global_')
        resumed = self.make(tmp_path, Rng(3))
        resumed.train(resume_from_checkpoint=True)
        assert Ledger.read(tmp_path / "out" / LEDGER).spends == 6

    def test_without_its_ledger_or_state_it_is_rejected(self, tmp_path: Path) -> None:
        self.stopped(tmp_path, Rng(3))
        (tmp_path / "out" / LEDGER).rename(tmp_path / "elsewhere")
        with pytest.raises(LedgerError, match="ledger that counted"):
            self.make(tmp_path, Rng(3)).train(resume_from_checkpoint=True)
        (tmp_path / "out" / "checkpoint-4" / STATE).unlink()
        with pytest.raises(ModelError, match="complete checkpoint"):
            self.make(tmp_path, Rng(3)).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
        with pytest.raises(ModelError, match="complete checkpoint"):
            self.make(tmp_path / "nothing", Rng(3)).train(resume_from_checkpoint=True)
