"""A private language model in small, offline and on a CPU: what epsilon 8 costs in perplexity.

python examples/language_model.py                   a small Llama, first trained on Python's own manual: 3 minutes
python examples/language_model.py --model FOLDER    your own causal language model instead

The small model learns English from public text, the manual that comes with Python. It is then fine-tuned on the
built-in clinic notes, with adapters (LoRA, extra `lora`) and in all layers, without protection and with DP-SGD at
epsilon 8 for each patient. Held-out notes of other patients tell the perplexity. docs/results.md has the same with
SmolLM2-135M on a GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads that spin slow everyone else

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from discreet import DPSGD, Corpus, Rng, TextSource, TrainSettings
from discreet.core import ExtraError
from discreet.data.batches import tokens_for
from discreet.models import LanguageModel
from discreet.models.encoder import quiet
from discreet.training import TrainingPlan, assess, train
from discreet.training.plan import model_settings

VOCABULARY, WIDTH, LAYERS, LENGTH = 800, 96, 2, 96
END = "<end>"
# Learning rates of the small model, by what is trained and whether it is private; it learns faster than a large one.
RATES = {("lora", False): 1e-2, ("lora", True): 2e-2, ("all", False): 2e-3, ("all", True): 1e-2}


def manual(characters: int) -> list[str]:
    """Return passages of the manual that comes with Python."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics.values()).split())
    return [text[start : start + 200] for start in range(0, characters, 200)]


def small_model(folder: Path, characters: int, epochs: float) -> Path:
    """Train a tokenizer and a small Llama on the manual, and return the folder that holds both."""
    texts = manual(characters)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(config)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    public = Corpus("the manual of Python", tuple(texts), splits=("train",) * len(texts))
    settings = model_settings({"max_length": LENGTH}, None, len(texts), "lm")
    model = LanguageModel.from_transformers(network, fast, settings, rng=Rng(0))
    loop = TrainSettings(epochs=epochs, batch_size=16, learning_rate=3e-3)
    train(model, public, TrainingPlan.make(model, public, training=loop, seed=0))
    with quiet():
        network.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def perplexity(model: LanguageModel, notes: Corpus) -> str:
    """Return the perplexity on held-out notes, with its 95% interval."""
    quality = assess(model, tokens_for(model, notes)).quality
    return f"{quality.value:.1f} [{quality.interval[0]:.1f}, {quality.interval[1]:.1f}]"


def main(given: list[str] | None = None) -> dict[str, str]:
    """Fine-tune on the notes and print a table of perplexities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a causal language model; by default a small one is trained first")
    parser.add_argument("--rows", type=int, default=700, help="clinic notes to make up")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, help="of every fine-tuning; by default those of the library")
    parser.add_argument("--public-characters", type=int, default=240_000, help="of the manual that is learned first")
    parser.add_argument("--public-epochs", type=float, default=3.0)
    asked = parser.parse_args(given)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    began = time.monotonic()
    notes = TextSource("notes", rows=asked.rows, seed=0, task="unlabelled").load()
    patients = notes.split("train").unit_count
    held_out = notes.split("validation")
    rows: dict[str, str] = {}
    promise = ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.model or small_model(Path(temporary), asked.public_characters, asked.public_epochs)
        print(f"{len(notes.split('train'))} notes of {patients} patients, {len(held_out)} held out", flush=True)
        for part in ("lora", "all"):
            for epsilon in (None, asked.epsilon):
                protect = None if epsilon is None else DPSGD(epsilon=epsilon)
                chosen = {"encoder": str(folder), "train": part, "max_length": LENGTH}
                settings = model_settings(chosen, protect, patients, "lm")
                try:
                    model = LanguageModel.load(settings, rng=Rng(0))
                except ExtraError as error:
                    print(error)
                    break
                if not rows:
                    rows["before"] = perplexity(model, held_out)
                    print(f"before fine-tuning      {rows['before']}", flush=True)
                rate = None if asked.model else RATES[part, protect is not None]
                loop = TrainSettings(epochs=asked.epochs, learning_rate=rate)
                done = train(model, notes, TrainingPlan.make(model, notes, protect=protect, training=loop))
                name = f"{part}, {'plain' if epsilon is None else f'epsilon {epsilon:g}'}"
                rows[name] = perplexity(model, held_out)
                print(f"{name:23} {rows[name]}", flush=True)
                promise = promise if done.guarantee is None else done.guarantee.sentence(assumptions=False)
    print(f"{promise}\n({time.monotonic() - began:.0f} s)")
    return rows


if __name__ == "__main__":
    main()
