"""What attacks read from the gradients of single texts under each protection of a plane, kept as it is read."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.crafted.decepticons import Decepticons
from discreet.attacks.matching.lamp_tag_dlg import Lamp
from discreet.attacks.matching.word_draws import WordDraws
from discreet.clipping.record import Record
from discreet.core.errors import DiscreetError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release
from reproductions.calibration.lamp import varied

DELTA = 1e-5
Setting = dict[str, Any]
Read = Callable[[Setting, list[str]], None]
_SOURCES = {"lamp": "LAMP", "word-draws": "Word draws"}  # names of the random sources: they repeat the figures


@dataclass(frozen=True)
class Formed(DirDPSGD):
    """Directional DP-SGD that forms the units' gradients whatever their number: a large device has room for them."""

    def gather(self, record: Record, sums: dict[str, torch.Tensor], rng: Rng) -> None:
        """Add the noisy directions of some units to the sums."""
        if len(record):
            self.gather_formed(record, sums, rng)
        else:
            super().gather(record, sums, rng)


@dataclass(frozen=True)
class Readings:
    """The guesses of every attack for every setting, one for each text, in a file that is written as they come."""

    path: Path
    truths: Sequence[str]
    read: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, truths: Sequence[str]) -> Readings:
        """Return what was read of these texts before; readings of other texts are not carried on."""
        kept = json.loads(path.read_text()) if path.exists() else {"truths": None}
        return cls(path, truths, kept["read"] if kept["truths"] == list(truths) else {})

    def missing(self, attack: str, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings that an attack has not read yet."""
        return [setting for setting in settings if name_of(setting) not in self.read.get(attack, {})]

    def keep(self, attack: str, setting: Setting, guesses: list[str]) -> None:
        """Add what was read under a setting, and write all."""
        self.read.setdefault(attack, {})[name_of(setting)] = guesses
        partial = self.path.with_suffix(".partial")  # what is cut off while writing leaves the file before it whole
        partial.write_text(json.dumps({"truths": list(self.truths), "read": self.read}))
        partial.replace(self.path)


@dataclass(frozen=True)
class Victims:
    """The texts whose gradients are attacked, the model, and the public text that an attacker has."""

    asked: argparse.Namespace
    model: Classifier
    rows: Corpus
    public: Corpus
    rng: Rng

    def release(self, setting: Setting, i: int, model: Classifier | None = None) -> GradientRelease:
        """Return the gradient of one text under a setting; every attack on this model is given the same one."""
        model = model or self.model
        protect = built(setting, model)
        row, rng = self.rows.take([i]), self.rng.fork("release", name_of(setting), i)
        return open_release(model, row) if protect is None else protected_release(model, row, protect, rng, delta=DELTA)

    def prior(self) -> NGram:
        """Return the attacker's language model."""
        if self.asked.prior is None:
            return NGram.fit(self.public.texts, self.model.tokenizer, least=2)
        return NGram.load(self.asked.prior)


def name_of(setting: Setting) -> str:
    """Return a setting in a few words."""
    strength = " ".join(f"{k} {v:g}" for k, v in setting.items() if k in {"noise_multiplier", "kappa"})
    return f"{setting['name']} {strength}".strip()


def built(setting: Setting, model: Classifier) -> Any:
    """Return a protection for the parameters that a model trains."""
    if setting["name"] == "none":
        return None
    if setting["name"] == "dir-dp-sgd":
        kind = Formed if model.device.type == "cuda" else DirDPSGD
        return kind.for_model(model, setting["kappa"])
    return DPSGD(setting["noise_multiplier"], setting["clip_norm"])


def searched(kind: type[Lamp | WordDraws], noisy_settings: str) -> Callable[[Victims, Sequence[Setting], Read], None]:
    """Return how an attack that searches reads settings; the noisy ones are attacked in portions."""

    def read(victims: Victims, settings: Sequence[Setting], keep: Read) -> None:
        asked, model = victims.asked, victims.model
        prior = victims.prior()
        table = "encoder." + max(model.encoder.named_parameters(), key=lambda item: item[1].shape[0])[0]
        for portion in _portions(settings, max(1, asked.at_once // len(victims.rows))):
            noisy = portion[0]["name"] != "none"
            releases = [
                _without_table(victims.release(setting, i), built(setting, model), table)
                for setting in portion
                for i in range(len(victims.rows))
            ]
            seconds = asked.seconds if noisy else asked.seconds / 2
            attack = varied(kind, noisy_settings if noisy else "", seconds)
            knows = Knowledge(model=model, defence=DPSGD(1.0, 1.0) if noisy else None, extra={"prior": prior})
            began = time.monotonic()
            rng = victims.rng.fork(_SOURCES[kind.name], name_of(portion[0]))
            guesses = attack.run_many(releases, knows, rng)
            told = {name: round(passed, 1) for name, passed in guesses[0].details["seconds"].items()}
            spent = time.monotonic() - began
            steps = guesses[0].details["steps"]
            print(f"  {kind.name}, {len(releases)} releases: {spent:.0f} s, {steps} steps, {told}", flush=True)
            texts = [guess.texts[0] if guess.texts else "" for guess in guesses]
            for number, setting in enumerate(portion):
                keep(setting, texts[number * len(victims.rows) : (number + 1) * len(victims.rows)])

    return read


def decepticons(victims: Victims, settings: Sequence[Setting], keep: Read) -> None:
    """Read settings by Decepticons: the server's own weights, one text a release."""
    attack = Decepticons()
    crafted = attack.craft(victims.model, victims.rng.fork("craft"))
    for setting in settings:
        guesses = []
        for i in range(len(victims.rows)):
            try:
                seen = victims.release(setting, i, crafted)
                rng = victims.rng.fork("decepticons", name_of(setting), i)
                guess = attack.run(seen, Knowledge(model=crafted), rng).texts
            except DiscreetError:  # nothing that it could read is left under the noise
                guess = ()
            guesses.append(guess[0] if guess else "")
        keep(setting, guesses)


def _portions(settings: Sequence[Setting], count: int) -> Iterator[list[Setting]]:
    """Yield the plain setting alone, then the noisy ones, so many at a time."""
    plain = [setting for setting in settings if setting["name"] == "none"]
    noisy = [setting for setting in settings if setting["name"] != "none"]
    if plain:
        yield plain
    for start in range(0, len(noisy), count):
        yield noisy[start : start + count]


def _without_table(found: GradientRelease, protect: Any, unused: str) -> GradientRelease:
    """Return a release without the table of words, and as long as a clipped gradient with noise."""
    longer = 1 / VonMisesFisher(protect.kappa, protect.dimension).mean_cosine if isinstance(protect, DirDPSGD) else 1.0
    return replace(found, gradients={n: g * longer for n, g in found.gradients.items() if n != unused})
