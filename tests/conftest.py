"""Small real models and corpora that many tests share, written to disk as a user would have them."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Before torch is first imported: idle threads that spin slow every other process on the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests hold with any number; with one they share a machine best
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# Also for fixtures of a whole module, which come before `own_cache`: never the user's records of trainings.
_HOME = tempfile.TemporaryDirectory(prefix="discreet-tests-")
os.environ["DISCREET_HOME"] = _HOME.name

# `make test` draws the same examples everywhere; `make test-slow` draws others with each seed and prints what fails.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("fixed")

# Seeds of the perturbations of a test of a search, besides none: odd and even ones perturb in two ways. The fast tests
# use one of the first two, half of the tests one and half the other; the slow tests use all.
PERTURBATIONS = tuple(range(1, 9))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for the order of the tests."""
    parser.addoption("--order", default="", help="reverse, or random:SEED; as they are collected without it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests into the order that was asked for."""
    order = config.getoption("order")
    if order == "reverse":
        items.reverse()
    elif order.startswith("random:"):
        random.Random(order.removeprefix("random:")).shuffle(items)
    elif order:
        raise pytest.UsageError(f"Expected --order to be reverse or random:SEED, got {order}.")


def pytest_configure(config: pytest.Config) -> None:
    """Collect no garbage until all tests are collected, which leaves little to be freed."""
    if config.getoption("dist", "no") == "no":  # not in a process that only hands tests out, which collects none
        gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what is imported and collected from garbage collection: a full one would take half a second each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that is marked as one of a search also on releases that are perturbed by 1e-6."""
    if metafunc.definition.get_closest_marker("search"):
        fast = PERTURBATIONS[zlib.crc32(metafunc.definition.originalname.encode()) % 2]
        slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in PERTURBATIONS if seed != fast]
        seeds = [None, fast, *slow]
        metafunc.parametrize("perturbed", seeds, indirect=True, ids=lambda seed: f"perturbed-{seed}" if seed else "")


_WORDS = """the a an of and is was very not patient film plot pain heart lung child fever good bad calm sharp dull
bright slow quick week day cough rest walk sleep food water hand knee back scan dose clinic ward nurse doctor note
call mother"""
WORDS = _WORDS.split()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests away from the user's cache and from the user's records of trainings."""
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    # A home for each test: what others trained on the same rows must not be added up in its totals.
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path_factory.getbasetemp() / "homes" / os.urandom(8).hex()))


@pytest.fixture(autouse=True)
def own_draws(request: pytest.FixtureRequest) -> None:
    """Seed the global generators by the name of the test: what a test draws depends on no test before it."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    for module, function in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if module in sys.modules:  # not imported for its seed alone
            getattr(sys.modules[module], function)(seed)


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Give every test the threads that the environment says; a command sets its own."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(autouse=True)
def perturbed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perturb what attacks are given, by 1e-6 relative: about what another processor's rounding does."""
    seed = getattr(request, "param", None)
    if seed is not None:
        from tests.perturbation import perturb_what_attacks_see

        perturb_what_attacks_see(seed, monkeypatch)


@pytest.fixture
def trials_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the trials of a study in this process, for tests of anything but worker processes: these import torch."""
    from discreet.study.sweep import ENGINES
    from discreet.study.workers import Event, Run, Stop, _attempt, _ended

    def run_here(planned: Sequence[Any], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
        for one in planned:
            if should_stop():
                return
            yield Event(one)
            yield _ended(one, _attempt(run, one))

    monkeypatch.setitem(ENGINES, "processes", run_here)


def save_tokenizer(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,?!-")
    pieces = special + WORDS + letters + [f"##{c}" for c in letters]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if kind != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if kind == "bert" else [])
    end = {"eos_token": "[SEP]"} if kind == "gpt2" else {"pad_token": "[PAD]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names,
        **end,
    ).save_pretrained(folder)


def save_encoder(folder: Path, kind: str) -> Path:
    """Write a tiny random model of a family with its tokenizer, and return its folder."""
    import torch
    import transformers

    from discreet.models.encoder import quiet

    size = len(dict.fromkeys(WORDS)) + 100
    configs = {
        "bert": lambda: transformers.BertConfig(
            vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=48,
        ),
        "roberta": lambda: transformers.RobertaConfig(
            vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=50, pad_token_id=1, type_vocab_size=1,
        ),
        "distilbert": lambda: transformers.DistilBertConfig(
            vocab_size=size, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=48
        ),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=48, bos_token_id=3, eos_token_id=3
        ),
    }  # fmt: skip
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModel.from_config(configs[kind]()).save_pretrained(folder)
    save_tokenizer(folder, kind)
    return folder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the name of a family to the folder of a tiny random model of it."""
    made: dict[str, Path] = {}

    def folder(kind: str = "bert") -> Path:
        if kind not in made:
            made[kind] = save_encoder(tmp_path_factory.mktemp(f"tiny-{kind}"), kind)
        return made[kind]

    return folder


def save_causal(folder: Path, kind: str) -> Path:
    """Write a tiny random causal language model of a family with its tokenizer, and return its folder."""
    import torch
    import transformers

    from discreet.models.encoder import quiet

    size = len(dict.fromkeys(WORDS)) + 100
    blocks = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    blocks |= {"num_key_value_heads": 1, "max_position_embeddings": 48}
    ends = {"bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 3}
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=48, **ends
        ),
        "llama": lambda: transformers.LlamaConfig(
            vocab_size=size, tie_word_embeddings=True, **blocks, **ends
        ),
        "qwen2": lambda: transformers.Qwen2Config(
            vocab_size=size, tie_word_embeddings=False, **blocks, **ends
        ),
    }  # fmt: skip
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(configs[kind]()).save_pretrained(folder)
    save_tokenizer(folder, "gpt2")
    return folder


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the name of a family to the folder of a tiny random causal language model of it."""
    made: dict[str, Path] = {}

    def folder(kind: str = "llama") -> Path:
        if kind not in made:
            made[kind] = save_causal(tmp_path_factory.mktemp(f"tiny-causal-{kind}"), kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def toy_rows() -> list[tuple[str, str]]:
    """Return 120 texts whose label is decided by one word in them."""
    rows = []
    for i in range(120):
        word, label = (("heart", "ward"), ("knee", "clinic"))[i % 2]
        rows.append((f"the {WORDS[(7 * i) % len(WORDS)]} {word} was {WORDS[(11 * i + 3) % len(WORDS)]} {i}", label))
    return rows


@pytest.fixture(scope="session")
def toy_csv(tmp_path_factory: pytest.TempPathFactory, toy_rows: list[tuple[str, str]]) -> Path:
    """Return a CSV file of the toy rows."""
    path = tmp_path_factory.mktemp("toy") / "toy.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in toy_rows), encoding="utf-8")
    return path
