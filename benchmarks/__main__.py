"""Every benchmark that a CPU can run in a few minutes, one after the other; what `make bench` runs."""

from __future__ import annotations

import sys

from benchmarks import calibrate, clipping, ledger, von_mises_fisher


def main() -> None:
    for name, run in (
        ("What a private step costs beside a plain one and Opacus", lambda: clipping.main([])),
        ("Calibration beside Opacus", calibrate.main),
        ("Directions beside their normal numbers and scipy", von_mises_fisher.main),
        ("A spend beside a bare write and sync", ledger.main),
    ):
        print(f"\n## {name}\n", flush=True)
        run()


if __name__ == "__main__":
    sys.argv = sys.argv[:1]  # each benchmark has options of its own: run it alone to use them
    main()
