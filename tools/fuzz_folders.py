"""Small folders that a fuzzer changes: a locally private run of a random encoder, its two sides, and a sweep."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = (
    "the",
    "a",
    "of",
    "and",
    "was",
    "not",
    "pain",
    "heart",
    "knee",
    "calm",
    "sharp",
    "week",
    "day",
    "cough",
    "ward",
)


def make_folders(folder: Path) -> dict[str, Path]:
    """Return the folders by their kinds; a run takes a second or two."""
    from discreet.cli.main import main

    folder.mkdir(parents=True)
    rows = [
        f"the {_WORDS[i % 14]} {('heart', 'knee')[i % 2]} was {_WORDS[i % 11]} {i},{('a', 'b')[i % 2]}"
        for i in range(60)
    ]
    (folder / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    _save_encoder(folder / "encoder")
    asked = [
        "train",
        str(folder / "rows.csv"),
        "--model",
        str(folder / "encoder"),
        "--protect",
        "ldp",
        "--epsilon",
        "8",
    ]
    asked += ["--projection", "whole", "--epochs", "1", "--out", str(folder / "run"), "--json"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = main(asked)
    if status != 0:
        raise RuntimeError(f"Expected the run of the fuzzer to be trained: {said.getvalue()}")
    sweep = folder / "sweep"
    sweep.mkdir()
    save_sweep(sweep)
    both = {"client": folder / "run" / "client", "server": folder / "run" / "server"}
    return {"run": folder / "run", **both, "sweep": sweep}


def _save_encoder(folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from discreet.models.encoder import quiet

    vocabulary = {word: number for number, word in enumerate([*_SPECIAL, *_WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    shape = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=24,
    )
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModel.from_config(shape).save_pretrained(folder)


def save_sweep(folder: Path) -> None:
    """Write a kept study and its trials as a sweep leaves them, with made-up figures."""
    from discreet.core.guarantee import Adjacency, Guarantee
    from discreet.core.types import Leakage, Trial
    from discreet.study.file import read_study
    from discreet.study.store import Store
    from discreet.study.sweep import FORMAT, STUDY

    study = read_study(Path(__file__).parent / "fuzz_seeds" / "study_small.toml")
    (folder / STUDY).write_text(json.dumps({"format": FORMAT, **study.as_dict()}, indent=2), encoding="utf-8")
    (folder / "failures.json").write_text(json.dumps({"none": "it was not run"}), encoding="utf-8")
    (folder / "risk.json").write_text(json.dumps([{"ceiling": 0.05, "noise": 2.0}]), encoding="utf-8")
    with Store(folder) as store:
        for number, epsilon in enumerate((None, 3.0)):
            protection = {"name": "none"} if epsilon is None else {"name": "dp-sgd", "epsilon": epsilon}
            stated = None if epsilon is None else Guarantee(epsilon, 1e-5, "note", Adjacency.ADD_REMOVE, "pld")
            leak = Leakage("one-of-n/identified", 0.5, 0.4, 0.6, n=40, chance=0.02)
            trial = Trial({"protect": protection}, 0, {"accuracy": 0.75}, (leak,), stated, 1.0, 10, {})
            store.append(f"trial {number}", trial)
