"""Run the command line in a process that gets a signal after a given number of training steps.

Arguments: the signal, the number of steps, the file of the checkpoint, and those of the command line. Just before the
last steps it waits until a checkpoint is due, so that the signal comes a few steps after one, on every machine.
"""

import itertools
import os
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from discreet.cli.main import main

BETWEEN = 4  # steps between the last checkpoint and the signal
SECONDS = 0.5  # between two checkpoints

if __name__ == "__main__":
    number, last, saved = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    steps = itertools.count(1)

    def stepped(*_: object) -> None:
        step = next(steps)
        if step == last - BETWEEN:
            time.sleep(SECONDS)
        elif step == last:
            assert saved.exists()
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(stepped)
    sys.exit(main([*sys.argv[4:], "--checkpoint-seconds", str(SECONDS)]))
