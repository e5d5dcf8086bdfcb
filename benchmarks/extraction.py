"""What models memorize: exposure of canaries, (n, p)-extraction against sampling, and linkage of generated texts.

python -m benchmarks.extraction exposure extraction linkage --model FOLDER --task lm --device cuda --out extraction.json
python -m benchmarks.extraction exposure --task classifier --seeds 5 --out extraction-classifier.json
python -m benchmarks.extraction small --model FOLDER                           (writes a small language model)
python -m benchmarks.extraction exposure --task lm --model FOLDER --learning-rate 2e-3 --out extraction-small.json
python -m benchmarks.extraction people --out people.json

A language model is trained once without privacy and once at each epsilon, on the notes with canaries planted 1, 10 and
100 times; all that is asked is measured on these models. `people` needs no training: linkage, pseudonyms and attributes
on released notes. `small` trains a causal model of 133,440 weights from scratch on notes of other patients, for a CPU.
Each line of results is written to --out as soon as it is there.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.language_model import Results
from discreet.attacks.extraction.discoverable import Prompt, Sampling, prompts_of, sample, suffix_log_probabilities
from discreet.catalog import attack_of, protection
from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.canaries import SECRETS, Planting
from discreet.data.notes import notes
from discreet.experiment.attack.people import link_generated
from discreet.experiment.attack.request import AttackRequest
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scene import Scene, Target
from discreet.metrics.intervals import clopper_pearson
from discreet.models.base import TextModel
from discreet.models.build import cache_folder
from discreet.models.classifier import Classifier
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.base import Conditions
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import RunChoices
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan, model_settings

_PUBLIC_SEED = 7  # of the notes that the small model is trained on


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("exposure", "extraction", "linkage", "people", "small"))
    parser.add_argument("--task", choices=("lm", "classifier"), default="classifier")
    parser.add_argument("--model", help="a folder or name; by default smollm2, or minilm for a classifier")
    parser.add_argument("--train", help="what is trained; by default all of a language model, the head of a classifier")
    parser.add_argument("--rows", type=int, default=2000, help="notes to generate")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[3.0])
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--spread", action=argparse.BooleanOptionalAction, default=True, help="also copies in many units"
    )
    parser.add_argument("--epochs", type=float, help="of every training without privacy")
    parser.add_argument("--private-epochs", type=float, help="of every private training")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--canaries", type=int, default=10, help="for each number of copies")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--kind", default=SECRETS)
    parser.add_argument("--digits", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each setting, with other noise")
    parser.add_argument("--prompts", type=int, default=16, help="texts that are sampled")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--suffix", type=int, default=10)
    parser.add_argument("--prefix", type=int, default=40)
    parser.add_argument("--generated", type=int, default=500)
    parser.add_argument("--examples", type=int, default=500, help="notes that are linked")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def trained(asked: argparse.Namespace, epsilon: float | None, spread: bool, seed: int) -> tuple[Scene, dict[str, Any]]:
    """Train a model on the notes with canaries, and return it with what is known of its training."""
    planting = Planting(asked.canaries, tuple(asked.copies), asked.kind, asked.digits, spread, seed=seed + 1)
    language = asked.task == "lm"
    corpus = notes(asked.rows)
    corpus = corpus.unlabelled() if language else corpus
    with_canaries, canaries = planting.plant(corpus)
    protect = None if epsilon is None else DPSGD(epsilon=epsilon)
    part = asked.train or ("all" if language else "head")
    chosen: dict[str, Any] = {"encoder": asked.model or ("smollm2" if language else "minilm"), "train": part}
    if language:
        chosen["max_length"] = 128
    units = with_canaries.split("train").unit_count
    settings = model_settings(chosen, protect, units, "lm" if language else None)
    device, rng = find_device(asked.device), Rng(seed).fork("model")
    model: TextModel
    if language:
        model = LanguageModel.load(settings, rng=rng).to(device)
    else:
        model = Classifier.build(with_canaries, settings, rng=rng).to(device)
    epochs = asked.epochs if epsilon is None else asked.private_epochs
    loop = TrainSettings(epochs=epochs, learning_rate=asked.learning_rate)
    plan = TrainingPlan.make(model, with_canaries, protect=protect, training=loop, seed=seed, noise_seed=seed)
    began = time.monotonic()
    job = Job(cache=cache_folder())
    if plan.protect is None:
        done, event = train(model, with_canaries, plan, job=job), None
    else:
        with plan.open_ledger() as ledger:
            done = train(model, with_canaries, plan, ledger=ledger, secret=plan.secret(), job=job)
            event = ledger.event
    about = {
        "steps": done.steps,
        "epochs": plan.settings.epochs,
        "batch": plan.settings.batch_size,
        "rate": plan.settings.learning_rate,
        "units": units,
        "train_seconds": time.monotonic() - began,
    }
    if done.guarantee is not None:
        about |= {"epsilon": done.guarantee.epsilon, "delta": done.guarantee.delta}
    choices = RunChoices(None, settings, plan.settings, protect, seed, None, planting)  # type: ignore[arg-type]
    target = Target(corpus, choices, event, plan.adjacency, done.guarantee, cache_folder(), canaries)
    return Scene.of(corpus, model.eval(), split="train", target=target, origin="the trained model"), about


def exposures(scene: Scene) -> dict[str, Any]:
    result = attack_once(AttackRequest(attack_of("exposure"), name="exposure"), scene)
    named = {"largest": result.details["largest"], "p_value": result.details["p_value"]}
    bits = [[one["copies"], round(one["bits"], 3)] for one in result.details["canaries"]]
    return {"exposure": result.details["exposure"], **named, "bits": bits, "seconds": result.seconds}


def extractions(asked: argparse.Namespace, scene: Scene) -> dict[str, Any]:
    """Compare exact probabilities with how often samples contain the continuation, and the time that both take."""
    model, sampling = scene.model, Sampling(1.0, 40)
    assert isinstance(model, LanguageModel)
    attack = attack_of("extraction", {"prefix": asked.prefix, "suffix": asked.suffix})
    result = attack_once(AttackRequest(attack, name="extraction", members=1000), scene)
    texts = scene.everything.split("train").texts[:1000]
    prompts = [one for one in prompts_of(model, texts, asked.prefix, asked.suffix) if one is not None]
    logs = suffix_log_probabilities(model, prompts, sampling)
    # continuations that 10,000 samples can be expected to contain several times, from rare to frequent
    able = [place for place in logs.argsort() if 20 / asked.samples < math.exp(logs[place]) < 1]
    step = max(1, len(able) // asked.prompts)
    chosen: list[Prompt] = [prompts[place] for place in able[::step][: asked.prompts]]
    _synchronize(model)
    began = time.monotonic()
    exact = suffix_log_probabilities(model, chosen, sampling)
    _synchronize(model)
    exact_seconds = time.monotonic() - began
    began = time.monotonic()
    lines = []
    for number, prompt in enumerate(chosen):
        rows = sample(model, prompt.prefix, asked.samples, len(prompt.suffix), sampling, Rng(number))
        hits = sum(tuple(row) == prompt.suffix for row in rows)
        low, high = clopper_pearson(hits, asked.samples)
        lines.append({"exact": math.exp(exact[number]), "sampled": hits / asked.samples, "low": low, "high": high})
    _synchronize(model)
    sampled_seconds = time.monotonic() - began
    total = sum(round(line["sampled"] * asked.samples) for line in lines)
    low, high = clopper_pearson(total, asked.samples * max(len(lines), 1))
    compared = {
        "prompts": len(chosen),
        "samples": asked.samples,
        "inside_95": sum(line["low"] <= line["exact"] <= line["high"] for line in lines),
        "mean_exact": sum(line["exact"] for line in lines) / max(len(lines), 1),
        "mean_sampled": [total / asked.samples / max(len(lines), 1), low, high],
        "exact_seconds": exact_seconds,
        "sampled_seconds": sampled_seconds,
        "times_cheaper": sampled_seconds / exact_seconds,
        "lines": lines,
    }
    return {
        **(compared if chosen else {"prompts": 0}),
        "shares": {key: result.details[key] for key in ("trials", "training", "unseen", "texts", "unseen_texts")},
        "items": result.details["items"],
        "leakage": {leak.metric: [leak.value, leak.low, leak.high, leak.chance] for leak in result.leakages},
        "bounds": dict(result.bounds),
    }


def linkages(asked: argparse.Namespace, scene: Scene) -> dict[str, Any]:
    began = time.monotonic()
    request = AttackRequest(attack_of("linkage"), name="linkage", examples=asked.generated)
    found = link_generated(attack_of("linkage"), request, scene, Rng(0))
    (linked,) = found.leakages
    value = [linked.value, linked.low, linked.high]
    return {"linked": value, "chance": linked.chance, **found.details, "seconds": time.monotonic() - began}


def small(asked: argparse.Namespace) -> None:
    """Write a small causal model that was trained on notes of other patients, as a public model to fine-tune."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    public = notes(1000, seed=_PUBLIC_SEED).unlabelled()
    end, size = "<|endoftext|>", 800
    tokenizer = Tokenizer(models.BPE())
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[end], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(public.texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=end).save_pretrained(
        asked.model
    )
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    ).save_pretrained(asked.model)
    settings = model_settings({"encoder": asked.model, "train": "all", "max_length": 128}, None, len(public), "lm")
    model = LanguageModel.load(settings, rng=Rng(0))
    loop = TrainSettings(epochs=asked.epochs or 10.0, learning_rate=5e-3)
    train(model, public, TrainingPlan.make(model, public, training=loop))
    model.network.save_pretrained(asked.model)


def people(asked: argparse.Namespace, results: Results) -> None:
    """Link released notes, with more and more known of people, plain and after SanText; reverse pseudonyms."""
    corpus = notes(asked.rows)
    labelled = Classifier.build(corpus, rng=Rng(0), train="head").eval()
    scene = Scene.of(corpus, labelled, split="train")
    rewriters: dict[str, Any] = {"names removed": None}
    for per_word in (160.0, 80.0, 40.0, 20.0):
        conditions = Conditions(labelled, 1, 1, 1, steps=1, epochs=1.0, delta=1e-5, public=None)
        built = protection("santext", {"epsilon_per_word": per_word}).resolve(conditions)
        rewriters[f"santext, epsilon {per_word:g} per word"] = built
    columns = ("age,sex", "age,sex,job", "date", "age,sex,job,date")
    for name, protect in rewriters.items():
        for known in columns:
            key = f"linkage {name}: {known}"
            if key in results:
                continue
            attack = attack_of("linkage", {"columns": known})
            request = AttackRequest(attack, protect, name="linkage", examples=asked.examples, noise_seed=0)
            results.add(key, _line(attack_once(request, scene)))
    for scheme in ("md5", "sha256", "hmac", "random"):
        if (key := f"pseudonyms {scheme}") not in results:
            attack = attack_of("pseudonyms", {"scheme": scheme})
            results.add(key, _line(attack_once(AttackRequest(attack, examples=asked.examples), scene)))
    for attribute in ("label", "sex", "age", "job"):
        if (key := f"attribute {attribute}") not in results:
            attack = attack_of("attribute", {"attribute": attribute})
            results.add(key, _line(attack_once(AttackRequest(attack, examples=200, batch_size=1), scene)))


def _line(result: Any) -> dict[str, Any]:
    (leak,) = result.leakages
    return {"value": leak.value, "low": leak.low, "high": leak.high, "chance": leak.chance, "n": leak.n}


def _synchronize(model: TextModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def main(given: list[str] | None = None) -> None:
    asked = arguments(given)
    results = Results(asked.out)
    if "people" in asked.what:
        people(asked, results)
    if "small" in asked.what:
        small(asked)
    what = [name for name in asked.what if name not in {"people", "small"}]
    budgets: list[float | None] = [*([None] if asked.plain else []), *asked.epsilons]
    for epsilon in budgets if what else []:
        for spread in (False, True) if asked.spread and epsilon is not None else (False,):
            for seed in range(asked.seeds):
                name = "plain" if epsilon is None else f"epsilon {epsilon:g}"
                key = f"{asked.task} {name}{' spread' if spread else ''} seed {seed}"
                wanted = ["exposure"] if spread else what
                missing = [one for one in wanted if f"{one} {key}" not in results]
                if not missing:
                    continue
                scene, about = trained(asked, epsilon, spread, seed)
                for one in missing:
                    measured = {
                        "exposure": lambda scene=scene: exposures(scene),
                        "extraction": lambda scene=scene: extractions(asked, scene),
                        "linkage": lambda scene=scene: linkages(asked, scene),
                    }[one]()
                    results.add(f"{one} {key}", {**measured, "about": about})
                del scene
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
