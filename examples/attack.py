"""What a server reads in the gradient of a clinic note, without protection and with it, and what is proven of that.

Everything is built in and offline: python examples/attack.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads that spin slow everyone else

import torch

from discreet import DPSGD, AttackRequest, attack_once
from discreet.attacks import Dager, OneOfN
from discreet.experiment import SceneRequest, load_scene


def main() -> None:
    """Attack two notes at three strengths of noise, then identify one of 64 notes over the same strengths."""
    torch.set_num_threads(1)
    scene = load_scene(SceneRequest("notes"))  # a fresh MiniLM; SceneRequest(run=Path("runs/a")) attacks a trained one
    for noise in (None, 1e-3, 1.0):
        protect = None if noise is None else DPSGD(noise, clip_norm=1.0)
        read = attack_once(AttackRequest(Dager(), protect, name="dager", examples=2, max_words=25), scene)
        print(f"\nDAGER, {'no protection' if noise is None else f'DP-SGD with noise {noise:g}'}: {read.leakages[0]}")
        for example in read.examples:
            print(f"  written: {example.truth}\n  read:    {example.guess or '(nothing)'}")
        print("  " + ("No guarantee." if read.guarantee is None else read.guarantee.sentence()))

    print("\nOne of 64 notes, named by the best attack there is, beside what no attack can exceed:")
    for noise in (0.1, 0.3, 1.0, 3.0):
        named = attack_once(AttackRequest(OneOfN(), DPSGD(noise, clip_norm=1.0)), scene)
        assert named.guarantee is not None
        spent = f"epsilon {named.guarantee.epsilon:.3g}"
        print(f"  noise {noise:<4g} {spent:<14} {named.leakages[0]}, bound {named.bound:.3f}")


if __name__ == "__main__":
    main()
