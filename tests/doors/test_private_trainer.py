"""What a careless user of `PrivateTrainer` may do, and what becomes of the guarantee."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door
from tests.integrations.test_transformers import PEOPLE, ROWS, arguments, bert, flat, held_out, padded, rows
from torch import Tensor, nn
from torch.utils.data import Subset

from discreet import DPSGD, Ledger, Rng
from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee_of
from discreet.core.errors import DataError, LedgerError, ModelError, SettingError, UnsupportedError
from discreet.core.guarantee import HELD_OUT, Caveat, Guarantee
from discreet.integrations import account
from discreet.integrations.transformers import GUARANTEE, LEDGER, START, STATE, PrivateTrainer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers and accelerate
STEPS, BATCH = 4, 8
NOISE = DPSGD(noise_multiplier=1.0, clip_norm=0.5)


def trainer(folder: Path, kind: type[PrivateTrainer] = PrivateTrainer, changes: Any = None, **given: Any) -> Any:
    settings: dict[str, Any] = {"train_dataset": rows(), "data_collator": padded}
    settings |= {"protect": NOISE, "groups": "patient_id"}
    short = {"max_steps": STEPS, "logging_steps": 1} | (changes or {})
    return kind(bert(), arguments(folder, **short), **settings | given)


def cost(steps: int = STEPS, units: int = PEOPLE) -> float:
    """The epsilon of so many steps, from their definition."""
    event = PoissonSampledDpEvent(BATCH / units, ClippedSumDpEvent(1.0))
    return guarantee_of(SelfComposedDpEvent(event, steps), delta=1e-5, adjacency="zero-out", unit="patient").epsilon


def is_whole(trained: PrivateTrainer, folder: Path) -> None:
    """Check that a saved model states the cost of all planned steps, and that the ledger holds them."""
    stored = Guarantee.from_dict(json.loads((folder / GUARANTEE).read_text()))
    ledger = Ledger.read(Path(trained.args.output_dir) / LEDGER)
    assert stored.certified and stored.epsilon == pytest.approx(cost()) == trained.guarantee.epsilon
    assert ledger.spends == STEPS and ledger.guarantee(1e-5).epsilon == pytest.approx(cost())
    assert f"epsilon = {stored.epsilon:.3f}"[:12] in (folder / "README.md").read_text()


class Callback(transformers.TrainerCallback):
    """Do something after a step."""

    def __init__(self, act: Callable[[Any, Any, Any], object], step: int = 2) -> None:
        self.act, self.step = act, step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        if state.global_step == self.step:
            self.act(control, model, state)


def stop(control: Any, model: nn.Module, state: Any) -> None:
    control.should_training_stop = True


def shorten(control: Any, model: nn.Module, state: Any) -> None:
    state.max_steps = 3


def interrupt(control: Any, model: nn.Module, state: Any) -> None:
    raise KeyboardInterrupt


# Before


@door("PrivateTrainer", "unit", CERTIFIED)
def test_without_a_unit_each_row_is_protected_and_the_column_of_people_is_named(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"'patient_id'.*a guarantee would be for each row.*groups='patient_id'.*groups='row'"
    ):
        trained = trainer(tmp_path, groups=None)
    trained.train()
    assert trained.guarantee.unit == "row" and trained.guarantee.certified
    assert trained.guarantee.epsilon == pytest.approx(cost(units=ROWS)) and cost(units=ROWS) < cost()


@door("PrivateTrainer", "unit", REJECTED)
def test_a_word_for_a_unit_needs_the_ids_of_the_units(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Expected groups.*unit='patient_id'.*groups='row'"):
        trainer(tmp_path, groups=None, unit="patient_id")


def test_the_word_for_a_unit_is_that_of_the_column_or_ones_own(tmp_path: Path) -> None:
    own = trainer(tmp_path, unit="subject")
    own.train()
    assert own.guarantee.unit == "subject" and own.guarantee.epsilon == pytest.approx(cost())


@door("PrivateTrainer", "unit", CERTIFIED)
def test_rows_are_confirmed_as_units_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert trainer(tmp_path, groups="row")._unit_ids is None
    assert not [one for one in recwarn if "patient_id" in str(one.message)]


@door("PrivateTrainer", "again", CERTIFIED)
def test_a_second_training_in_the_same_ledger_states_the_cost_of_both(tmp_path: Path) -> None:
    for number in (1, 2):
        trained = trainer(tmp_path / str(number), ledger=tmp_path / "shared.jsonl")
        trained.train()
        assert trained.guarantee.certified and trained.guarantee.epsilon == pytest.approx(cost(number * STEPS))


# During


@door("PrivateTrainer", "stop", CERTIFIED)
def test_early_stopping_by_held_out_rows_costs_all_planned_steps(tmp_path: Path) -> None:
    changes = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    changes |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    never_better = transformers.EarlyStoppingCallback(1, early_stopping_threshold=1e9)
    trained = trainer(tmp_path, changes=changes, eval_dataset=held_out(), callbacks=[never_better])
    trained.train()
    assert trained.state.global_step < STEPS, "it stopped early"
    trained.save_model()
    is_whole(trained, tmp_path / "out")
    stated = json.loads((tmp_path / "out" / GUARANTEE).read_text())["assumptions"]
    in_ledger = Ledger.read(tmp_path / "out" / LEDGER).terms.assumptions
    for sentence in (HELD_OUT, "chosen by eval_loss on held-out rows", "may end early by eval_loss", "without looking"):
        assert any(sentence in one for one in stated) and any(sentence in one for one in in_ledger), sentence
    checkpoint = json.loads((tmp_path / "out" / "checkpoint-1" / GUARANTEE).read_text())
    assert checkpoint["epsilon"] == pytest.approx(cost()) and checkpoint["certified"]
    logged = [one["privacy/epsilon"] for one in trained.state.log_history if "privacy/epsilon" in one]
    assert logged and min(logged) == pytest.approx(cost()), "no figure is smaller than that of the plan"


@door("PrivateTrainer", "stop", CERTIFIED)
@pytest.mark.parametrize("act", [stop, shorten, interrupt])
def test_a_training_that_is_stopped_and_saved_costs_all_planned_steps(tmp_path: Path, act: Any) -> None:
    trained = trainer(tmp_path, callbacks=[Callback(act)])
    try:
        trained.train()
    except KeyboardInterrupt:
        assert act is interrupt
    assert trained.state.global_step < STEPS
    trained.save_model(str(tmp_path / "model"))
    is_whole(trained, tmp_path / "model")


@door("PrivateTrainer", "stop", CERTIFIED)
def test_a_model_that_is_saved_during_training_states_the_cost_of_all_planned_steps(tmp_path: Path) -> None:
    trained = trainer(tmp_path)
    trained.add_callback(Callback(lambda *_: trained.save_model(str(tmp_path / "early")), step=1))
    trained.train()
    is_whole(trained, tmp_path / "early")


@door("PrivateTrainer", "error", REJECTED)
def test_a_step_that_catches_its_errors_is_rejected(tmp_path: Path) -> None:
    class Careless(PrivateTrainer):
        def training_step(self, *given: Any, **more: Any) -> Tensor:
            try:
                return super().training_step(*given, **more)
            except RuntimeError:
                return torch.zeros(())

    with pytest.raises(UnsupportedError, match="training_step"):
        trainer(tmp_path, Careless)


@door("PrivateTrainer", "error", CERTIFIED)
def test_a_step_with_an_unreadable_row_releases_nothing_and_the_plan_is_paid(tmp_path: Path) -> None:
    class Broken(list[Any]):
        is_broken = False

        def __getitem__(self, index: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("an unreadable row")
            return super().__getitem__(index)

    dataset, weights = Broken(rows()), []

    def damage(control: Any, model: Any, state: Any) -> None:
        dataset.is_broken = True
        weights.append(flat(model))

    trained = trainer(tmp_path, train_dataset=dataset, callbacks=[Callback(damage)])
    with pytest.raises(RuntimeError, match="unreadable"):
        trained.train()
    trained.save_model(str(tmp_path / "model"))
    is_whole(trained, tmp_path / "model")
    assert trained.state.global_step == 2
    assert torch.equal(flat(trained.model), weights[0]), "nothing of the step with the error"


@door("PrivateTrainer", "state", ESTIMATE)
def test_weights_that_a_callback_writes_are_a_caveat(tmp_path: Path) -> None:
    def write(control: Any, model: Any, state: Any) -> None:
        with torch.no_grad():
            model.classifier.bias += torch.tensor([float(row["labels"]) for row in rows()]).mean()

    trained = trainer(tmp_path, callbacks=[Callback(write)])
    trained.train()
    assert Caveat.UNPROTECTED_STATE in trained.guarantee.caveats
    assert Caveat.UNPROTECTED_STATE in Ledger.read(tmp_path / "out" / LEDGER).terms.caveats


# What lies in an output folder and its checkpoints, and why it may be shared. Covered: a function of protected
# gradients, held-out rows and settings. Fixed: the same whatever the rows hold.
COVERED, FIXED = "covered by the guarantee", "does not depend on the rows"
FILES = {
    "model.safetensors": COVERED,
    "optimizer.pt": COVERED,
    "trainer_state.json": COVERED,
    STATE: COVERED,  # with a keyed digest of the weights
    "config.json": FIXED,
    "training_args.bin": FIXED,
    "scheduler.pt": FIXED,
    "rng_state.pth": FIXED,  # of generators that draw neither batches nor noise
    START: COVERED,
    LEDGER: FIXED,
    GUARANTEE: FIXED,
    "README.md": FIXED,
}
STATE_KEYS = {  # of trainer_state.json: those that may differ
    "log_history", "best_metric", "best_global_step", "best_model_checkpoint",
}  # fmt: skip
LOGGED = {
    "grad_norm": COVERED, "eval_loss": COVERED, "learning_rate": FIXED, "epoch": FIXED, "step": FIXED,
    "privacy/epsilon": FIXED, "privacy/delta": FIXED, "num_input_tokens_seen": FIXED,
    "eval_runtime": COVERED, "eval_samples_per_second": COVERED, "eval_steps_per_second": COVERED,
}  # fmt: skip


@door("PrivateTrainer", "log", CERTIFIED)
def test_neighbouring_trainings_differ_only_in_what_the_guarantee_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account.secrets, "token_hex", lambda size: "0" * 2 * size)
    other = [
        row | {"input_ids": [7], "attention_mask": [1], "labels": 0} if row["patient_id"] == "p3" else row
        for row in rows()
    ]
    found, logs = [], []
    changes = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    changes |= {"include_num_input_tokens_seen": True, "report_to": "none"}
    for data in (rows(), other):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        monkeypatch.setenv("DISCREET_HOME", str(tmp_path / f"home-{len(found)}"))  # both ledgers have the same name
        seen: list[dict[str, Any]] = []

        class Listening(transformers.TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
                seen.append(logs)  # noqa: B023

        given = {"train_dataset": data, "eval_dataset": held_out(), "secret": Rng.secret(b"k" * 32)}
        trained = trainer(tmp_path, changes=changes, callbacks=[Listening()], **given)
        result = trained.train()
        trained.save_model()
        trained.save_state()
        trained.save_metrics("train", result.metrics, combined=False)
        assert trained.guarantee.certified and trained.guarantee.epsilon == pytest.approx(cost())
        files = {path.relative_to(tmp_path / "out"): path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
        found.append({name: content for name, content in files.items() if not name.name.startswith("checkpoint")})
        logs.append(seen)
    first, second = found
    for files in found:
        for path in [path for path in files if path.name == "guarantee.json"]:
            stated = json.loads(files[path])
            assert stated.pop("digests")  # of the weights, which the guarantee covers
            files[path] = json.dumps(stated).encode()
    assert first.pop(Path("train_results.json")) == second.pop(Path("train_results.json")) == b"{}"
    assert first.keys() == second.keys() and {name.name for name in first} == FILES.keys()
    differing = {name.name for name in first if first[name] != second[name]}
    assert differing <= {name for name, reason in FILES.items() if reason == COVERED}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= differing
    one, two = (json.loads(files[Path("trainer_state.json")]) for files in found)
    assert {key for key in one if one[key] != two[key]} <= STATE_KEYS
    for mine, theirs in zip(one["log_history"] + logs[0], two["log_history"] + logs[1], strict=True):
        assert mine.keys() == theirs.keys() <= LOGGED.keys()
        assert all(mine[key] == theirs[key] for key in mine if LOGGED[key] == FIXED)


# After


@door("PrivateTrainer", "resume", REJECTED)
def test_a_training_is_not_resumed_with_other_settings_or_without_its_ledger(tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 2}
    secret = tmp_path / "secret"
    stopped = trainer(tmp_path, changes=saves, secret=secret, callbacks=[Callback(interrupt, step=3)])
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    for given in ({"protect": DPSGD(noise_multiplier=0.5)}, {"changes": saves | {"max_steps": 6}}):
        with pytest.raises(ModelError, match="protection"):
            trainer(tmp_path, **{"changes": saves, "secret": secret} | given).train(resume_from_checkpoint=True)
    with pytest.raises(LedgerError, match="ledger that counted"):
        elsewhere = {"ledger": tmp_path / "other.jsonl", "secret": secret}
        trainer(tmp_path, changes=saves, **elsewhere).train(resume_from_checkpoint=True)


@door("PrivateTrainer", "resume", CERTIFIED)
def test_a_training_that_is_resumed_with_other_weights_draws_anew_and_counts_it(tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 2}
    secret = tmp_path / "secret"
    stopped = trainer(tmp_path, changes=saves, secret=secret, callbacks=[Callback(interrupt, step=3)])
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    bert(seed=2).save_pretrained(tmp_path / "out" / "checkpoint-2")
    resumed = trainer(tmp_path, changes=saves, secret=secret)
    resumed.train(resume_from_checkpoint=True)
    assert Ledger.read(tmp_path / "out" / LEDGER).spends == STEPS + 2, "the plan, and two steps that were drawn anew"
    assert resumed.guarantee.epsilon == pytest.approx(cost(STEPS + 2))


@door("PrivateTrainer", "edit", REJECTED)
def test_a_ledger_from_which_spends_were_cut_is_rejected(tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 2}
    trained = trainer(tmp_path, changes=saves, secret=Rng(3), callbacks=[Callback(interrupt, step=3)])
    with pytest.raises(KeyboardInterrupt):
        trained.train()
    ledger = tmp_path / "out" / LEDGER
    lines = ledger.read_bytes().splitlines(keepends=True)
    spends = [number for number, line in enumerate(lines) if line.startswith(b"[")]
    ledger.write_bytes(b"".join(lines[: spends[0]]))  # all spends from the end
    with pytest.raises(LedgerError, match="does not hold"):
        trainer(tmp_path, changes=saves, secret=Rng(3)).train(resume_from_checkpoint=True)
    ledger.write_bytes(b"".join(line for number, line in enumerate(lines) if number != spends[0]))
    with pytest.raises(LedgerError):
        trainer(tmp_path, changes=saves, secret=Rng(3)).train(resume_from_checkpoint=True)


@door("PrivateTrainer", "edit", CERTIFIED)
def test_an_edited_guarantee_is_written_anew_from_the_ledger(tmp_path: Path) -> None:
    trained = trainer(tmp_path)
    trained.train()
    trained.save_model()
    stored = json.loads((tmp_path / "out" / GUARANTEE).read_text())
    (tmp_path / "out" / GUARANTEE).write_text(json.dumps(stored | {"epsilon": 0.1}))
    trained.save_model()
    is_whole(trained, tmp_path / "out")


class Padded(list[Any]):
    """A dataset whose rows are padded to another length."""

    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)
        more = 3
        return row | {
            "input_ids": row["input_ids"] + [0] * more,
            "attention_mask": row["attention_mask"] + [0] * more,
        }


def without_ids(count: int = ROWS) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "patient_id"} for row in rows(count)]


SAME = rows()
SHARED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "the same object": lambda: ("patient_id", SAME),
    "equal rows": lambda: ("patient_id", rows(4)),
    "other rows of a person": lambda: ("patient_id", [held_out(1)[0], held_out(1)[0] | {"patient_id": "p3"}]),
    "equal rows, each a unit": lambda: (None, [*without_ids(50)[48:], without_ids(1)[0]]),
    "equal rows, padded": lambda: (None, Padded(without_ids(1))),
    "part of the dataset": lambda: (None, Subset(SAME, [5])),  # type: ignore[arg-type]
    "a stream": lambda: (None, iter_of(without_ids(2))),
    "one of several": lambda: ("patient_id", {"fresh": held_out(), "train": rows(1)}),
}


@door("PrivateTrainer", "evaluate", REJECTED)
@pytest.mark.parametrize("name", SHARED)
def test_rows_and_units_of_the_train_dataset_are_not_evaluated_on(tmp_path: Path, name: str) -> None:
    unit, dataset = SHARED[name]()
    with pytest.raises(DataError, match=r"eval_dataset.* to share no row and no unit with the train dataset"):
        trainer(tmp_path, train_dataset=SAME, groups=unit, eval_dataset=dataset)
    assert not (tmp_path / "out" / LEDGER).exists(), "nothing is spent"
    trained = trainer(tmp_path, train_dataset=SAME, groups=unit)
    with pytest.raises(DataError, match="eval_dataset"):
        trained.evaluate(dataset)
    if not isinstance(dataset, dict):
        with pytest.raises(DataError, match="test_dataset"):
            trained.predict(dataset)
    trained.eval_dataset = dataset
    with pytest.raises(DataError, match="eval_dataset"):
        trained.train()
    assert trained.private is None and not trained.state.log_history


@door("PrivateTrainer", "evaluate", REJECTED)
def test_a_person_is_recognized_by_a_number_as_text_and_people_may_have_equal_rows(tmp_path: Path) -> None:
    numbered = [row | {"patient_id": number % PEOPLE} for number, row in enumerate(rows())]
    trained = trainer(tmp_path, train_dataset=numbered, eval_dataset=held_out())
    with pytest.raises(DataError, match="1 units"):
        trained.predict([held_out(1)[0] | {"patient_id": " 7"}])


@door("PrivateTrainer", "evaluate", REJECTED)
def test_rows_that_do_not_say_whose_they_are_are_not_evaluated_on(tmp_path: Path) -> None:
    # Other rows of the same people would pass: nothing in them is equal to a training row.
    unknown = [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in held_out()]
    for dataset in (unknown, iter_of(unknown), {"one": held_out(), "two": unknown}):
        with pytest.raises(DataError, match="column 'patient_id' in eval_dataset"):
            trainer(tmp_path, eval_dataset=dataset)
    with pytest.raises(DataError, match="keep the column in test_dataset"):
        trainer(tmp_path).predict(unknown)


def long_rows(length: int, count: int = 20, seed: int = 5) -> list[dict[str, Any]]:
    """Return rows without ids of 12 tokens, truncated as a tokenizer does: with the token of the end."""
    generator = torch.Generator().manual_seed(seed)
    ids = [[1, *torch.randint(3, 40, (11,), generator=generator).tolist()] for _ in range(count)]
    ids = [[*one[: length - 1], 2] for one in ids]
    return [{"input_ids": one, "attention_mask": [1] * len(one), "labels": one[1] % 3} for one in ids]


@door("PrivateTrainer", "evaluate", REJECTED)
@pytest.mark.parametrize(("length", "other"), [(12, 10), (10, 12)])
def test_training_rows_are_recognized_if_they_are_truncated_otherwise(tmp_path: Path, length: int, other: int) -> None:
    given: dict[str, Any] = {"train_dataset": long_rows(length), "groups": None}
    fresh = long_rows(other, 40, seed=6)
    with pytest.raises(DataError, match="20 rows of it"):
        trainer(tmp_path, eval_dataset=[*long_rows(other), *fresh], **given)
    trainer(tmp_path, eval_dataset=[*long_rows(other)[:2], *fresh], **given)  # a few may begin alike by chance


@door("PrivateTrainer", "evaluate", REJECTED)
def test_a_callback_cannot_evaluate_on_training_rows(tmp_path: Path) -> None:
    trained = trainer(tmp_path)
    trained.add_callback(Callback(lambda *_: trained.evaluate(rows(3))))
    with pytest.raises(DataError, match="eval_dataset"):
        trained.train()
    with pytest.raises(DataError, match="eval_dataset"):
        trained.evaluate(trained.train_dataset)
    assert not any("eval_loss" in entry for entry in trained.state.log_history)
    trained.save_model()
    is_whole(trained, tmp_path / "out")


@door("PrivateTrainer", "evaluate", REJECTED)
@pytest.mark.parametrize("metric", ["train_loss", "train_runtime"])
def test_a_checkpoint_is_not_chosen_by_figures_of_training_rows(tmp_path: Path, metric: str) -> None:
    changes = {"load_best_model_at_end": True, "metric_for_best_model": metric, "eval_strategy": "steps"}
    with pytest.raises(SettingError, match="metric_for_best_model"):
        trainer(tmp_path, changes=changes | {"save_strategy": "steps"}, eval_dataset=held_out())


@door("PrivateTrainer", "evaluate", CERTIFIED)
def test_held_out_rows_choose_the_checkpoint_and_the_guarantee_says_so(tmp_path: Path) -> None:
    changes = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", "load_best_model_at_end": True}
    datasets = {"one": held_out(), "two": iter_of(held_out(4))}
    changes |= {"metric_for_best_model": "eval_one_loss"}
    trained = trainer(tmp_path, changes=changes, eval_dataset=datasets)
    trained.train()
    assert trained.predict(held_out(2)).metrics["test_loss"] > 0 and trained.evaluate(held_out(2))["eval_loss"] > 0
    trained.save_model()
    is_whole(trained, tmp_path / "out")
    best = transformers.AutoModelForSequenceClassification.from_pretrained(trained.state.best_model_checkpoint)
    assert torch.equal(flat(best), flat(trained.model))
    stated = trained.guarantee.assumptions
    assert HELD_OUT in stated and sum("by eval_one_loss on held-out rows" in one for one in stated) == 2


def iter_of(chosen: list[Any]) -> Any:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(chosen)

        def __len__(self) -> int:
            return len(chosen)

    return Stream()
