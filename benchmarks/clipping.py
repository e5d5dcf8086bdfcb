"""Cost of clipping: a private step beside a plain one and beside Opacus, in time and in peak memory.

python -m benchmarks.clipping                       on the CPU: MiniLM's shape, 32 sentences of 64 tokens, all layers
python -m benchmarks.clipping --device cuda         on a GPU: BERT-base's and MiniLM's shapes, eager and graphed
python -m benchmarks.clipping --device cuda --other-models --steps 30 --json FILE
                                                    on a GPU, eager, bf16: BERT-base, MiniLM and SmolLM2-135M's shape
                                                    (frozen embeddings, LoRA, tied embeddings trained), beside Opacus
python -m benchmarks.clipping --sweep --plot FILE   cost against batch size and length, as a table and as an SVG

All sides run in one process, in the same mode, on the same batch, with the same optimizer; times are medians. Weights
are random. A private step is the forward and backward pass, the clipped sum, its division by the batch size and the
optimizer's step; `noise` adds Gaussian noise to every gradient, and `parts` reads the batch in parts of fixed shapes,
as `train` does. Memory is the peak over a step of all that is allocated: weights, optimizer, activations, gradients. On
the CPU, `operations` counts the torch operations of a step, which is what an eager step on a GPU has to launch.
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
from discreet.data.batches import Shapes

SHAPES = {"minilm": (384, 6, 12, 1536), "bert-base": (768, 12, 12, 3072), "tiny": (64, 2, 2, 128)}
CAUSAL = {"smollm2-135m": (576, 30, 9, 3, 1536, 49152), "tiny-lm": (64, 2, 4, 2, 128, 500)}
# The largest accepted ratio of time to the plain step, for each side, on an H200 in bf16, eager.
BARS = {
    ("bert-base", "layers", "ours"): 1.25,
    ("bert-base", "layers", "noise"): 1.35,
    ("minilm", "layers", "ours"): 1.3,
    ("minilm", "layers", "noise"): 1.35,
    ("smollm2-135m", "layers", "ours"): 1.1,
    ("smollm2-135m", "lora", "ours"): 1.25,
    ("smollm2-135m", "all", "ours"): 1.3,
}
SIDES = ("plain", "ours", "noise", "parts", "opacus-hooks", "opacus-ghost")
TURN = 5  # eager steps of one side before the next side takes its turn
CLIP = 1.0
NOISE_AT_ONCE = 2**25


@dataclass(frozen=True)
class Setting:
    """One comparison: a model's shape, a batch, which layers are trained, a precision and a mode."""

    shape: str
    batch: int
    length: int
    train: str  # "all"; "layers": all but the embeddings; "lora": adapters of rank 8 on query and value
    precision: str  # "float32", "tf32" or "bf16"
    mode: str  # "eager" or "graph"
    device: str

    def __str__(self) -> str:
        return f"{self.shape} {self.batch}×{self.length} {self.train} {self.precision} {self.mode}"


@dataclass(frozen=True)
class Cost:
    """Cost of one side: median seconds per step and the peak of allocated bytes, or the reason why it did not run.

    `refined` is the number of units whose norm was recomputed in float64 in the last step.
    """

    side: str
    seconds: float | None = None
    bytes: int | None = None
    reason: str | None = None
    operations: int | None = None
    refined: int | None = None


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, for machines without peft."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def build_causal(setting: Setting) -> nn.Module:
    """Return a Llama-shaped causal language model with tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, heads, key_heads, inner, vocabulary = CAUSAL[setting.shape]
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device(setting.device):
        model: nn.Module = LlamaForCausalLM(config).train()
        if setting.train == "layers":
            model.model.embed_tokens.requires_grad_(False)
        elif setting.train == "lora":
            model = adapted(model)
    return model


def adapted(model: nn.Module) -> nn.Module:
    """Return a model with LoRA on query and value, by peft where it is installed."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        model.requires_grad_(False)
        for module in list(model.modules()):
            for name in ("q_proj", "v_proj"):
                if isinstance(getattr(module, name, None), nn.Linear):
                    setattr(module, name, Adapted(getattr(module, name)))
    else:
        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ("lora_B" in name or ".up." in name):
            nn.init.normal_(parameter, std=0.02)  # a zero matrix would make the gradient of the other one zero
    return model


def build(setting: Setting) -> nn.Module:
    if setting.shape in CAUSAL:
        return build_causal(setting)
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
    if setting.shape in CAUSAL:
        ids = torch.randint(0, CAUSAL[setting.shape][-1], (setting.batch, setting.length + 1), device=setting.device)
        return {"input_ids": ids[:, :-1].contiguous()}, ids[:, 1:].contiguous()
    ids = torch.randint(1000, 30000, (setting.batch, setting.length), device=setting.device)
    # Opacus needs positions with a batch dimension of their own, so every side is given them.
    places = torch.arange(setting.length, device=setting.device).expand(setting.batch, -1).contiguous()
    labels = torch.randint(0, 2, (setting.batch,), device=setting.device)
    return {"input_ids": ids, "position_ids": places}, labels


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return one loss for each row: of its class, or the mean over its tokens."""
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none").view_as(labels).mean(1)


def add_noise(gradients: list[Tensor], scale: float) -> None:
    """Add Gaussian noise to tensors in place, drawn in few launches."""
    while gradients:
        some = [gradients.pop()]
        while gradients and sum(g.numel() for g in some) + gradients[-1].numel() <= NOISE_AT_ONCE:
            some.append(gradients.pop())
        noise = torch.randn(sum(g.numel() for g in some), device=some[0].device)
        parts = [part.view_as(g) for part, g in zip(noise.split([g.numel() for g in some]), some, strict=True)]
        torch._foreach_add_(some, parts, alpha=scale)


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
            loss = losses_of(model(**batch).logits, labels).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_step(setting: Setting, noise: bool = False, parts: bool = False) -> Callable[[], None]:
    model, (batch, labels) = build(setting), batch_of(setting)
    rows = setting.batch
    if parts:
        rows = min(rows, dict(Shapes.of(setting.device, setting.length, setting.batch).rows)[setting.length])
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(setting, list(named.values()))
    tape = Tape(model)

    def step() -> None:
        gradients: dict[str, Tensor] = {}
        for begun in range(0, setting.batch, rows):
            some = slice(begun, begun + rows)
            with tape, precise(setting):
                scores = model(**{name: value[some] for name, value in batch.items()}).logits
                losses = losses_of(scores, labels[some])
            record = tape.backward(losses)
            clipped_sum(record, Flat(CLIP), into=gradients)
            step.refined = record.refined  # type: ignore[attr-defined]
        if noise:
            add_noise(list(gradients.values()), CLIP)
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
            logits = wrapped(**batch).logits
            if labels.dim() == 1:
                loss = criterion(logits, labels)
            elif ghost:
                loss = criterion(logits.flatten(0, 1).float(), labels.flatten(), shape=labels.shape)
            else:
                loss = losses_of(logits, labels).mean()
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


def measure_graphed(side: str, setting: Setting, steps: int) -> Cost:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = graphed(step_of(side, setting))
    seconds = timed_cuda(step, steps)
    peak = torch.cuda.max_memory_allocated() - before
    return Cost(side, statistics.median(seconds), peak, refined=getattr(step, "refined", None))


def measure_eager(sides: list[str], setting: Setting, steps: int) -> list[Cost]:
    """Return the cost of eager steps: the peak of each side alone, then the time of all sides in turns.

    The host is the limit in eager mode and its speed varies, so the sides take turns of a few steps each; the first
    step of a turn does not count.
    """
    ready: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    peaks: dict[str, int] = {}
    for side in sides:
        with _reason(failed, side):
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            step = step_of(side, setting)
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            peaks[side], ready[side] = torch.cuda.max_memory_allocated() - before, step
    seconds: dict[str, list[float]] = {side: [] for side in ready}
    for _ in range(max(1, steps // TURN)):
        for side, step in ready.items():
            seconds[side] += timed_cuda(step, TURN + 1)[1:]
    return [
        Cost(side, statistics.median(seconds[side]), peaks[side], refined=getattr(ready[side], "refined", None))
        if side in ready
        else Cost(side, reason=failed[side])
        for side in sides
    ]


def timed_cuda(step: Callable[[], None], steps: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(marks)]


def measure_cpu(sides: list[str], setting: Setting, steps: int) -> list[Cost]:
    # The sides take turns, so that whatever else the machine does falls on all of them alike.
    ready: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for side in sides:
        with _reason(failed, side):
            step = step_of(side, setting)
            step()
            ready[side] = step
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
            peak, operations = cpu_peak(step, setting)
            refined = getattr(step, "refined", None)
            costs.append(Cost(side, statistics.median(times[side]), peak, operations=operations, refined=refined))
            del step
        else:
            costs.append(Cost(side, reason=failed[side]))
    return costs


def cpu_peak(step: Callable[[], None], setting: Setting) -> tuple[int, int]:
    """Return the peak of allocated bytes of a step on the CPU, and the number of its torch operations."""
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
    operations = sum(event.count for event in profile.key_averages() if event.key.startswith("aten::"))
    return peak + 4 * (sum(p.numel() for p in model.parameters()) + 2 * trained), operations


@contextlib.contextmanager
def _reason(failed: dict[str, str], side: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        failed[side] = "opacus is not installed"
    except Exception as error:  # whatever Opacus raises for a model that it does not support
        if side in ("plain", "ours", "noise", "parts"):
            raise
        failed[side] = f"{type(error).__name__}: {error}".splitlines()[0][:200]


def compare(setting: Setting, sides: list[str], steps: int) -> list[Cost]:
    if setting.device == "cpu":
        return measure_cpu(sides, setting, steps)
    if setting.mode == "eager":
        return measure_eager(sides, setting, steps)
    costs, failed = [], {}
    for side in sides:
        with _reason(failed, side):
            costs.append(measure_graphed(side, setting, steps))
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
            f"{cost.bytes / 2**20:9.0f} MiB {cost.bytes / base.bytes:6.2f}×{_remarks(setting, cost)}"
        )
    return "\n".join(lines)


def _remarks(setting: Setting, cost: Cost) -> str:
    bar = BARS.get((setting.shape, setting.train, cost.side)) if setting.mode == "eager" else None
    remarks = [] if bar is None or setting.device == "cpu" else [f"accepted {bar}×"]
    remarks += [f"{cost.operations} operations"] if cost.operations else []
    remarks += [f"{cost.refined} norms in float64"] if cost.refined else []
    return "   " + ", ".join(remarks) if remarks else ""


def other_models(device: str) -> list[tuple[str, int, int, str]]:
    """Return shape, batch, length and trained layers of the comparison with other people's models."""
    if device == "cpu":
        return [("tiny", 4, 16, "layers"), *(("tiny-lm", 4, 16, train) for train in ("layers", "lora", "all"))]
    shapes = [("bert-base", 64, 128, "layers"), ("minilm", 128, 64, "layers"), ("minilm", 128, 64, "all")]
    return [*shapes, *(("smollm2-135m", 32, 128, train) for train in ("layers", "lora", "all"))]


def settings_of(asked: argparse.Namespace) -> list[tuple[Setting, list[str], int]]:
    def make(shape: str, batch: int, length: int, train: str, precision: str, mode: str) -> Setting:
        return Setting(shape, batch, length, train, precision, mode, asked.device)

    sides = [side for side in SIDES if side in asked.sides]
    pair = [side for side in ("plain", "ours") if side in asked.sides]
    listed: list[tuple[Setting, list[str], int]] = []
    if asked.other_models:
        sides = [side for side in sides if side != "parts"]
        shapes = other_models(asked.device)
        return [(make(*shape, asked.precisions[0], "eager"), sides, asked.steps) for shape in shapes]
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
    parser.add_argument("--other-models", action="store_true", help="only BERT, MiniLM and SmolLM2 shapes, eager")
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
            environment = {"torch": torch.__version__, "device": _device_name(asked.device)}
            asked.json.write_text(json.dumps([environment, *rows], indent=1), encoding="utf-8")
    if asked.plot:
        asked.plot.write_text(drawing(rows), encoding="utf-8")
    return rows


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


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
