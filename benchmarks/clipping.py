"""What clipping costs: a private step against a plain one, in time and in peak memory, with Opacus beside it.

python -m benchmarks.clipping                       on the CPU: MiniLM's shape, 32 sentences of 64 tokens, all layers
python -m benchmarks.clipping --device cuda         on a GPU: BERT-base's and MiniLM's shapes, eager and graphed
python -m benchmarks.clipping --sweep --plot FILE   cost against batch size and length, as a table and as an SVG

All sides run in one process, in the same mode, on the same batch, with the same optimizer; times are medians. Weights
are random, for they do not matter here. A private step is the forward and backward pass, the clipped sum, its division
by the batch size and the optimizer's step; `noise` adds Gaussian noise to every gradient, and `parts` reads the batch
in parts of fixed shapes, as `train` does. Memory is the peak over a step of all that is allocated: weights, optimizer,
activations, gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, clipped_sum
from discreet.training.parts import Shapes

SHAPES = {"minilm": (384, 6, 12, 1536), "bert-base": (768, 12, 12, 3072), "tiny": (64, 2, 2, 128)}
SIDES = ("plain", "ours", "noise", "parts", "opacus-hooks", "opacus-ghost")
CLIP = 1.0


@dataclass(frozen=True)
class Setting:
    """One comparison: a model's shape, a batch, which layers are trained, a precision and a mode."""

    shape: str
    batch: int
    length: int
    train: str  # "all", or "layers": all but the embeddings
    precision: str  # "float32", "tf32" or "bf16"
    mode: str  # "eager" or "graph"
    device: str

    def __str__(self) -> str:
        return f"{self.shape} {self.batch}×{self.length} {self.train} {self.precision} {self.mode}"


@dataclass(frozen=True)
class Cost:
    """What one side took: median seconds a step, and the peak of allocated bytes, or why it did not run."""

    side: str
    seconds: float | None = None
    bytes: int | None = None
    reason: str | None = None


def build(setting: Setting) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.models.bert import modeling_bert

    # No sentence is padded, so attention needs no mask. Left alone, the model makes one while a graph is recorded, and
    # attention with a mask is slower on every side.
    modeling_bert.create_bidirectional_mask = lambda **_: None
    width, layers, heads, inner = SHAPES[setting.shape]
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    with torch.device(setting.device):
        model = BertForSequenceClassification(config).train()
    if setting.train == "layers":
        model.bert.embeddings.requires_grad_(False)
    return model


def batch_of(setting: Setting) -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(1000, 30000, (setting.batch, setting.length), device=setting.device)
    # Opacus needs positions with a batch dimension of their own, so every side is given them.
    places = torch.arange(setting.length, device=setting.device).expand(setting.batch, -1).contiguous()
    labels = torch.randint(0, 2, (setting.batch,), device=setting.device)
    return {"input_ids": ids, "position_ids": places}, labels


def optimizer_of(setting: Setting, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-6, fused=True, capturable=setting.mode == "graph")


def precise(setting: Setting) -> contextlib.AbstractContextManager[object]:
    torch.backends.cuda.matmul.fp32_precision = "tf32" if setting.precision == "tf32" else "ieee"
    return torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16")


def plain_step(setting: Setting) -> Callable[[], None]:
    model, (batch, labels) = build(setting), batch_of(setting)
    optimizer = optimizer_of(setting, [p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        with precise(setting):
            loss = F.cross_entropy(model(**batch).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_step(setting: Setting, noise: bool = False, parts: bool = False) -> Callable[[], None]:
    model, (batch, labels) = build(setting), batch_of(setting)
    rows = dict(Shapes.of(setting.device, setting.length, setting.batch).rows)[setting.length]
    rows = min(rows, setting.batch) if parts else setting.batch
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(setting, list(named.values()))
    tape = Tape(model)

    def step() -> None:
        gradients: dict[str, Tensor] = {}
        for begun in range(0, setting.batch, rows):
            some = slice(begun, begun + rows)
            with tape, precise(setting):
                scores = model(**{name: value[some] for name, value in batch.items()}).logits
                losses = F.cross_entropy(scores, labels[some], reduction="none")
            clipped_sum(tape.backward(losses), Flat(CLIP), into=gradients)
        if noise:
            for gradient in gradients.values():
                gradient.add_(torch.randn_like(gradient), alpha=CLIP)
        torch._foreach_div_(list(gradients.values()), setting.batch)
        for name, parameter in named.items():
            parameter.grad = gradients[name]
        del gradients
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_step(setting: Setting, ghost: bool) -> Callable[[], None]:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model, (batch, labels) = build(setting), batch_of(setting)
    options = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": setting.batch}
    inner = optimizer_of(setting, [p for p in model.parameters() if p.requires_grad])
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(inner, **options)
        criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"))
    else:
        wrapped, optimizer, criterion = GradSampleModule(model), DPOptimizer(inner, **options), nn.CrossEntropyLoss()

    def step() -> None:
        with precise(setting):
            loss = criterion(wrapped(**batch).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def step_of(side: str, setting: Setting) -> Callable[[], None]:
    if side == "plain":
        return plain_step(setting)
    if side in ("ours", "noise", "parts"):
        return our_step(setting, noise=side != "ours", parts=side == "parts")
    return opacus_step(setting, ghost=side == "opacus-ghost")


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    replay.step = step  # type: ignore[attr-defined]  # the graph reads the step's tensors, so they must stay
    return replay


def measure_cuda(side: str, setting: Setting, steps: int) -> Cost:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = step_of(side, setting)
    if setting.mode == "graph":
        step = graphed(step)
    else:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(marks)]
    return Cost(side, statistics.median(times), torch.cuda.max_memory_allocated() - before)


def measure_cpu(sides: list[str], setting: Setting, steps: int) -> list[Cost]:
    # The sides take turns, so that whatever else the machine does falls on all of them alike.
    ready: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for side in sides:
        with _reason(failed, side):
            ready[side] = step_of(side, setting)
            ready[side]()
    times: dict[str, list[float]] = {side: [] for side in ready}
    for _ in range(steps):
        for side, step in ready.items():
            began = time.perf_counter()
            step()
            times[side].append(time.perf_counter() - began)
    costs = []
    for side in sides:
        if side in ready:
            step = ready.pop(side)
            costs.append(Cost(side, statistics.median(times[side]), cpu_peak(step, setting)))
            del step
        else:
            costs.append(Cost(side, reason=failed[side]))
    return costs


def cpu_peak(step: Callable[[], None], setting: Setting) -> int:
    """Return the peak of what a step allocates on the CPU, on top of the weights and the optimizer's state."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    # Three times the weights are always there: the weights themselves and the two moments of the optimizer.
    allocated = [(e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    running = peak = 0
    for _, size in sorted(allocated, key=lambda pair: pair[0]):
        running += size
        peak = max(peak, running)
    model = build(setting)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return peak + 4 * (sum(p.numel() for p in model.parameters()) + 2 * trained)


@contextlib.contextmanager
def _reason(failed: dict[str, str], side: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        failed[side] = "opacus is not installed"
    except (RuntimeError, ValueError, NotImplementedError, TypeError, AttributeError, KeyError) as error:
        if side in ("plain", "ours", "noise", "parts"):
            raise
        failed[side] = f"{type(error).__name__}: {error}".splitlines()[0][:200]


def compare(setting: Setting, sides: list[str], steps: int) -> list[Cost]:
    if setting.device == "cpu":
        return measure_cpu(sides, setting, steps)
    costs, failed = [], {}
    for side in sides:
        with _reason(failed, side):
            costs.append(measure_cuda(side, setting, steps))
        if side in failed:
            costs.append(Cost(side, reason=failed[side]))
        gc.collect()
        torch.cuda.empty_cache()
    return costs


def table(setting: Setting, costs: list[Cost]) -> str:
    base = costs[0]
    lines = [f"{setting}"]
    for cost in costs:
        if cost.seconds is None or cost.bytes is None or base.seconds is None or base.bytes is None:
            lines.append(f"  {cost.side:13} not run: {cost.reason}")
            continue
        lines.append(
            f"  {cost.side:13} {1000 * cost.seconds:9.2f} ms {cost.seconds / base.seconds:6.2f}×   "
            f"{cost.bytes / 2**20:9.0f} MiB {cost.bytes / base.bytes:6.2f}×"
        )
    return "\n".join(lines)


def settings_of(asked: argparse.Namespace) -> list[tuple[Setting, list[str], int]]:
    def make(shape: str, batch: int, length: int, train: str, precision: str, mode: str) -> Setting:
        return Setting(shape, batch, length, train, precision, mode, asked.device)

    sides = [side for side in SIDES if side in asked.sides]
    pair = [side for side in ("plain", "ours") if side in asked.sides]
    listed: list[tuple[Setting, list[str], int]] = []
    if asked.device == "cpu":
        if not asked.no_main:
            kinds = [(batch, precision) for batch in asked.batches for precision in asked.precisions]
            listed += [(make("minilm", batch, 64, "all", p, "eager"), sides, asked.steps) for batch, p in kinds]
        if asked.sweep:
            grid = [(b, n) for b in (16, 32, 64) for n in (32, 64, 128)]
            listed += [(make("minilm", b, n, "all", "float32", "eager"), pair, 3) for b, n in grid]
        return listed
    if not asked.no_main:
        for precision in asked.precisions:
            for mode in asked.modes:
                some = sides if mode == "eager" else [s for s in sides if not s.startswith("opacus")]
                for shape, batch, length, train in [
                    ("bert-base", 64, 128, "layers"),
                    ("bert-base", 16, 512, "layers"),
                    ("minilm", 128, 64, "layers"),
                    ("minilm", 128, 64, "all"),
                ]:
                    listed.append((make(shape, batch, length, train, precision, mode), some, asked.steps))
    if asked.sweep:
        grid = [(b, n) for b in (16, 64, 256, 512) for n in (32, 128, 512)]
        listed += [(make("minilm", b, n, "layers", asked.precisions[0], asked.modes[-1]), pair, 7) for b, n in grid]
    return listed


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "tf32", "float32"])
    parser.add_argument("--modes", nargs="+", default=["eager", "graph"], choices=["eager", "graph"])
    parser.add_argument("--batches", nargs="+", type=int, default=[32], help="batch sizes on the CPU")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="also cost against batch size and length")
    parser.add_argument("--no-main", action="store_true", help="leave out the main comparison")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for the sweep as an SVG")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> list[dict[str, object]]:
    """Run the comparisons, print their tables, and return all figures."""
    asked = arguments(given)
    asked.precisions = asked.precisions or (["float32"] if asked.device == "cpu" else ["bf16"])
    warnings.filterwarnings("ignore", module="opacus|torch")
    if asked.device == "cpu":
        torch.set_num_threads(1)  # one busy core beats two spinning, and the ratio is what counts
    rows: list[dict[str, object]] = []
    for setting, sides, steps in settings_of(asked):
        costs = compare(setting, sides, steps)
        print(table(setting, costs), flush=True)
        rows += [{**asdict(setting), **asdict(cost)} for cost in costs]
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if asked.plot:
        asked.plot.write_text(drawing(rows), encoding="utf-8")
    return rows


def drawing(rows: list[dict[str, object]]) -> str:
    """Return an SVG of time and memory, ours over plain, against batch size, one line for each length."""
    found: dict[tuple[int, int], dict[str, dict[str, object]]] = {}
    for row in rows:
        if row["shape"] == "minilm" and row["side"] in ("plain", "ours") and row["seconds"]:
            found.setdefault((int(str(row["length"])), int(str(row["batch"]))), {})[str(row["side"])] = row
    points = {key: sides for key, sides in found.items() if len(sides) == 2}
    lengths = sorted({length for length, _ in points})
    batches = sorted({batch for _, batch in points})
    colours = ["#1b6ca8", "#c8553d", "#4f7942", "#7b4b94"]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="330" font-family="sans-serif" font-size="12">'
    ]
    parts.append('<rect width="760" height="330" fill="white"/>')
    for panel, (measure, title) in enumerate([("seconds", "time, ours / plain"), ("bytes", "memory, ours / plain")]):
        left, top, wide, high = 50 + 370 * panel, 40, 300, 220
        ratio = {k: float(str(s["ours"][measure])) / float(str(s["plain"][measure])) for k, s in points.items()}
        least, most = 0.8, max([1.4, *ratio.values()]) + 0.05
        place = {b: left + wide * (i + 0.5) / max(len(batches), 1) for i, b in enumerate(batches)}
        parts.append(f'<text x="{left}" y="24" font-weight="bold">{title}</text>')
        for tick in range(8, int(most * 10) + 1, 1 if most < 1.8 else 2):
            y = top + high * (1 - (tick / 10 - least) / (most - least))
            parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick / 10}</text>')
        for batch, x in place.items():
            parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle">{batch}</text>')
        parts.append(f'<text x="{left + wide / 2}" y="{top + high + 36}" text-anchor="middle">batch size</text>')
        for colour, length in zip(colours * 9, lengths, strict=False):
            line = [
                (place[b], top + high * (1 - (ratio[length, b] - least) / (most - least)))
                for b in batches
                if (length, b) in ratio
            ]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in line]
    for index, (colour, length) in enumerate(zip(colours * 9, lengths, strict=False)):
        x = 60 + 150 * index
        parts.append(f'<rect x="{x}" y="308" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="318">length {length}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
