"""The golden run: the results of a fixed list of small commands, to compare before and after a restructuring.

python -m tools.golden record FOLDER               run every command and write what it said and wrote
python -m tools.golden compare FOLDER              run them again on the present code and compare
python -m tools.golden compare FOLDER --again TWO  keep the second record in TWO, or read it if it is there
python -m tools.golden compare FOLDER --only 'train-*'  some of the commands, with those that they build on

The commands are in golden_commands.toml, the differences that are intended in golden_changes.toml, and
golden_compare.py says what must be equal. Every command is a process of its own with one thread, AVX2 instructions at
most, its own DISCREET_HOME and DISCREET_CACHE, and fixed seeds. Processes are forked from one that has imported torch
and transformers (never discreet), which saves four seconds for each; calibrate's workers and the server start afresh.
A comparison repeats the arguments of the record, so that old spellings are shown to work; [[alias]] replaces those that
are meant to be gone. Folders under `kept` in the record were written by the recorded code; the present code reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tools.golden_compare import compare_records, read_changes, settle

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ROOT / "tools" / "golden_commands.toml"
CHANGES = ROOT / "tools" / "golden_changes.toml"
RECORD = "record.json.gz"
_MARK = "DISCREET_GOLDEN"
# As tests/matrix.py: the same instructions on every machine that has AVX2.
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "120",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "TZ": "UTC",
}
_PRELOADED = (
    "torch", "transformers", "transformers.models.bert.modeling_bert", "transformers.models.auto.modeling_auto",
    "numpy", "scipy.stats", "scipy.optimize", "sklearn.metrics", "dp_accounting", "dp_accounting.pld",
    "safetensors.torch", "tokenizers", "pyarrow.parquet", "typer", "rich.console", "rich.table", "rich.progress",
)  # fmt: skip
# `bytes` is the peak memory of a trial, or the size of the cache.
_TIMES = re.compile(r"(^|_)(seconds|seconds_left|loading|preparing|began|ended|date|time|bytes)$")
_RANDOM_NAME = re.compile(r"\b[0-9a-f]{16}(?:[0-9a-f]{16,48})?\b")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
_PROGRESS = re.compile(r"rows/s|\d+/\d+  |about \d+ s left|s left$|\d+ s so far$|^\s*$")
_SKIPPED = ("home", "cache", "inputs", "kept", "stdout", "stderr", "study.toml", "own_file.toml")
_LIMIT = 300.0  # seconds for one command; then it is killed and recorded as such


# --- the list of commands ---------------------------------------------------------------------------------------------


def read_commands(path: Path = COMMANDS) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the commands, with their short forms written out, and the files that they read."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    short = table["short"]
    commands = []
    for command in table["command"]:
        words = command.get("run", "")
        for name, text in short.items():
            words = words.replace("{" + name + "}", text)
        commands.append(command | ({"run": shlex.split(words)} if words else {}))
    names = [command["name"] for command in commands]
    if len(set(names)) != len(names):
        raise SystemExit(f"Expected every command to have a name of its own, got {names}.")
    for number, command in enumerate(commands):
        for other in command.get("after", ()):
            if other not in names[:number]:
                raise SystemExit(f"Expected {other!r} before {command['name']!r}, which builds on it.")
    return commands, dict(table["files"])


def with_aliases(command: Mapping[str, Any], aliases: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return a command whose arguments are spelled as the present command line spells them."""
    words = list(command.get("run", ()))
    for alias in aliases:
        old, new = shlex.split(alias["from"]), shlex.split(alias["to"])
        if fnmatchcase(command["name"], alias.get("command", "*")):
            for start in range(len(words) - len(old) + 1):
                if words[start : start + len(old)] == old:
                    words[start : start + len(old)] = new
                    break
    return dict(command) | ({"run": words} if words else {})


def chosen(commands: Sequence[dict[str, Any]], only: Sequence[str]) -> list[dict[str, Any]]:
    """Return the commands whose names match, and all that they build on; everything where nothing is chosen."""
    if not only:
        return list(commands)
    wanted: set[str] = set()
    for command in reversed(commands):
        if command["name"] in wanted or any(fnmatchcase(command["name"], glob) for glob in only):
            wanted |= {command["name"], *command.get("after", ())}
    return [command for command in commands if command["name"] in wanted]


# --- inputs: made once with the record, and used again by every comparison --------------------------------------------


def make_inputs(folder: Path, scratch: Path) -> None:
    """Write the files that commands read: notes as a table and as lines, public text, and a tiny random encoder."""
    folder.mkdir(parents=True)
    rows = _notes(scratch, 120, 7)
    lines = ["text,label,patient"] + [f'"{row["text"]}",{row["label"]},{row["unit"]}' for row in rows]
    (folder / "notes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n" for row in rows[:6]), encoding="utf-8")
    public = [row["text"] for row in _notes(scratch, 80, 8)]
    (folder / "public.txt").write_text("".join(f"{text}\n" for text in public), encoding="utf-8")
    (folder / "public.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in public), encoding="utf-8")
    (folder / "sensitive.txt").write_text("knee\nchest\nheadache\npain\nstroke\n", encoding="utf-8")
    every = [row["text"] for row in (*rows, *_notes(scratch, 160, 3))] + public
    lines = ["text,label"] + [f'"{row["text"]}",{row["label"]}' for row in _notes(scratch, 60, 9)]
    (folder / "labelled.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _save_models(folder / "encoder", folder / "decoder", every)


def _notes(scratch: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Return built-in synthetic notes by way of the command line."""
    words = ["data", "notes", "--rows", str(count), "--examples", str(count), "--seed", str(seed), "--json"]
    status, out, err = run_command(words, scratch)
    if status:
        raise SystemExit(f"Expected `discreet {shlex.join(words)}` to work. {err}")
    rows: list[dict[str, Any]] = json.loads(out)["examples"]
    return rows


def _save_models(encoder: Path, decoder: Path, texts: Sequence[str]) -> None:
    """Write a random BERT and a random Llama, 32 wide, whose vocabulary is the most frequent words of some texts."""
    from collections import Counter

    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    counts = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    words = sorted(word for word, count in counts.items() if count >= 4 and len(word) > 1)
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,;:()'-/%")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters, *(f"##{c}" for c in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
    )
    fast.save_pretrained(encoder)
    transformers.utils.logging.disable_progress_bar()  # its thread would be forked into every command
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=96,
    )
    transformers.AutoModel.from_config(config).save_pretrained(encoder)
    fast.eos_token, fast.bos_token = "[SEP]", "[CLS]"
    fast.save_pretrained(decoder)
    causal = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=96,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    transformers.AutoModelForCausalLM.from_config(causal).save_pretrained(decoder)


# --- running ----------------------------------------------------------------------------------------------------------


def run_command(
    words: Sequence[str],
    scratch: Path,
    stdin: Path | None = None,
    interrupt: Path | None = None,
    script: str | None = None,
) -> tuple[int, str, str]:
    """Run `discreet`, or a script, with arguments in a forked process, and return its status and what it printed."""
    out, err = scratch / "stdout", scratch / "stderr"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_discreet(words, scratch, stdin, out, err, script)
    began, interrupted = time.monotonic(), False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if interrupt is not None and not interrupted and interrupt.exists():
            os.kill(child, signal.SIGINT)
            interrupted = True
        if time.monotonic() - began > _LIMIT:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _be_discreet(
    words: Sequence[str], scratch: Path, stdin: Path | None, out: Path, err: Path, script: str | None
) -> None:
    """Become `python -m discreet`, or a script, with these arguments; never return."""
    status = 1
    try:
        os.chdir(scratch)
        os.dup2(os.open(stdin or os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.argv = ["discreet", *words]
        try:
            if script is None:
                runpy.run_module("discreet", run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


class Servers:
    """The `discreet serve` processes of a recording, one for each folder, started when they are first needed."""

    def __init__(self, scratch: Path) -> None:
        """Start nothing yet."""
        self.scratch = scratch
        self.running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def address(self, folder: str) -> str:
        """Return the address of the server of a folder, once it answers."""
        if folder not in self.running:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            words = [sys.executable, "-m", "discreet", "serve", folder, "--port", str(port)]
            process = subprocess.Popen(words, cwd=self.scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.running[folder] = (process, f"http://127.0.0.1:{port}")
            for _ in range(1200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None:
                    break
                time.sleep(0.05)
        return self.running[folder][1]

    def stop(self) -> None:
        """End every server."""
        for process, _ in self.running.values():
            process.terminate()
            process.wait()


def _answers(address: str, scratch: Path) -> dict[str, Any]:
    try:
        return {"status": 0, "json": masked(ask(address), scratch)}
    except OSError as error:
        return {"status": 1, "notes": [f"No answer from the server: {error}"]}


def ask(address: str) -> dict[str, Any]:
    """Return what a server says of itself, its answers to fixed vectors, and how it rejects text."""
    about = _fetched(f"{address}/v1/about")
    width = int(about["body"]["width"])
    vectors = [[((7 * row + 3 * column) % 11 - 5) / 10 for column in range(width)] for row in range(4)]
    return {
        "about": about,
        "health": _fetched(f"{address}/health"),
        "answers": _fetched(f"{address}/v1/answers", {"vectors": vectors}),
        "text": _fetched(f"{address}/v1/answers", "the knee is stiff"),
        "narrow": _fetched(f"{address}/v1/answers", {"vectors": [[0.5]]}),
    }


def _fetched(url: str, body: Any = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return {"status": answer.status, "body": json.loads(answer.read())}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": json.loads(error.read())}


# --- recording --------------------------------------------------------------------------------------------------------


def record(commands: Sequence[dict[str, Any]], files: Mapping[str, str], folder: Path, before: Path | None) -> None:
    """Run commands in a scratch folder and write their results; with `before`, on the inputs of that record."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for module in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    results = []
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        scratch = Path(temporary).resolve()
        os.environ |= {"DISCREET_HOME": str(scratch / "home"), "DISCREET_CACHE": str(scratch / "cache")}
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8")
        if not (folder / "inputs").exists():
            if before is None:
                make_inputs(folder / "inputs", scratch)
            else:
                shutil.copytree(before / "inputs", folder / "inputs")
        shutil.copytree(folder / "inputs", scratch / "inputs")
        servers = Servers(scratch)
        try:
            for number, command in enumerate(commands, 1):
                started = time.monotonic()
                results.append(_result(command, scratch, servers))
                _keep(command.get("keep", ()), scratch, folder if before is None else before, made=before is None)
                status, notes = results[-1]["status"], results[-1]["notes"]
                seconds, said = time.monotonic() - started, f"  {notes[-1]}" if status and notes else ""
                print(
                    f"{number:3}/{len(commands)}  {command['name']:28} {status:4}  {seconds:5.1f} s{said}", flush=True
                )
        finally:
            servers.stop()
    made = {**_facts(), "seconds": round(time.monotonic() - began)}
    values = {"format": 1, "made": made, "files": dict(files), "commands": list(commands), "results": results}
    write_record(folder, values)
    print(f"{len(results)} commands in {made['seconds']} s, written to {folder}", flush=True)


def _result(command: Mapping[str, Any], scratch: Path, servers: Servers) -> dict[str, Any]:
    """Run one command and return what is recorded of it."""
    result: dict[str, Any] = {"name": command["name"]}
    if "drawn" in command:
        result["drawn"] = command["drawn"]
    seen = _tree(scratch)
    address = servers.address(command["serve"]) if "serve" in command else ""
    if command.get("http"):
        return result | {"notes": [], "files": {}} | _answers(address, scratch)
    words = [word.replace("{server}", address) for word in command.get("run", ())]
    stdin = scratch / command["stdin"] if "stdin" in command else None
    interrupt = scratch / command["interrupt"] if "interrupt" in command else None
    status, out, err = run_command(words, scratch, stdin, interrupt, command.get("script"))
    result["status"] = status
    try:
        result["json"] = masked(json.loads(out), scratch)
        for name in command.get("unordered", ()):
            result["json"][name].sort(key=lambda one: json.dumps(one, sort_keys=True))
    except ValueError:
        if out.strip():  # a table for people, or lines for another program
            lines = [masked(line, scratch) for line in out.splitlines()]
            result["text"] = {"lines": lines} if stdin else _figures(out)
    notes = [masked(line, scratch) for line in err.splitlines() if not _PROGRESS.search(line)]
    changed = {path: stamp for path, stamp in _tree(scratch).items() if seen.get(path) != stamp}
    return result | {"notes": notes, "files": {path: _file(scratch / path, scratch) for path in sorted(changed)}}


def _figures(text: str) -> dict[str, Any]:
    """Return the numbers in a table for people that are no times; its words may change."""
    lines = [line for line in text.splitlines() if not re.search(r"\d s to |\bs\.$", line)]
    return {"figures": sorted(float(one) for one in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", "\n".join(lines)))}


def _keep(paths: Sequence[str], scratch: Path, folder: Path, made: bool) -> None:
    """Put folders that the recorded code wrote under `kept`, for the commands that read them later."""
    for path in paths:
        if made and (scratch / path).exists():
            pages = shutil.ignore_patterns("report.*", "model_card.md")  # written again, and large
            shutil.copytree(scratch / path, folder / "kept" / path, ignore=pages, dirs_exist_ok=True)
        if (folder / "kept" / path).exists():
            shutil.copytree(folder / "kept" / path, scratch / "kept" / path)


def _tree(scratch: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in scratch.rglob("*"):
        name = path.relative_to(scratch)
        if path.is_file() and (name.parts[0] not in _SKIPPED or (name.parts[0] == "kept" and len(name.parts) > 1)):
            stat = path.stat()
            found[str(name)] = (stat.st_mtime_ns, stat.st_size)
    return found


def _file(path: Path, scratch: Path) -> Any:
    """Return what is recorded of a file: figures of tensors, values of JSON and TOML, lines of text; else nothing."""
    if path.suffix == ".safetensors":
        return {"tensors": tensor_figures(path)}
    if "tokenizer" in path.parts or path.name in ("encoder.json", "report.html"):
        return {}
    if path.name.endswith("ledger.jsonl") or path.name == "shared.jsonl":
        return {"length": len(path.read_text(encoding="utf-8").splitlines())}
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        return masked(json.loads(text), scratch)
    if path.suffix == ".jsonl":
        return [masked(json.loads(line), scratch) for line in text.splitlines()]
    if path.suffix == ".toml":
        return masked(tomllib.loads(text), scratch)
    if path.name == "report.md":
        return _figures("\n".join(line for line in text.splitlines() if line.startswith("|")))
    if path.suffix == ".txt":
        return {"lines": text.splitlines()}
    return {}


def tensor_figures(path: Path) -> dict[str, Any]:
    """Return for each tensor its shape, its norm and its product with a fixed vector, which any change moves."""
    import numpy as np
    from safetensors.numpy import load_file

    found = {}
    for name, tensor in sorted(load_file(path).items()):
        values = tensor.astype(np.float64).ravel()
        fixed = np.cos(1.0 + np.arange(values.size))
        figures = [float(f"{one:.10g}") for one in (np.linalg.norm(values), values @ fixed)]
        found[name] = {"shape": list(tensor.shape), "norm": figures[0], "product": figures[1]}
    return found


def masked(value: Any, scratch: Path, key: str = "") -> Any:
    """Return a value without what differs from run to run: times, dates, random names, folders, versions."""
    if _TIMES.search(key) and not isinstance(value, Mapping | list):
        return "<time>"
    if key == "version":
        return "<version>"
    if isinstance(value, Mapping):
        return {_RANDOM_NAME.sub("<random>", str(name)): masked(one, scratch, str(name)) for name, one in value.items()}
    if isinstance(value, list):
        return [masked(one, scratch, key) for one in value]
    if isinstance(value, str):
        text = _DATE.sub("<date>", value.replace(str(scratch), "<scratch>"))
        return _RANDOM_NAME.sub("<random>", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", text))
    return value


def _facts() -> dict[str, Any]:
    """Return where a record was made: commit, versions, processor and the instructions that were allowed."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True).stdout.strip()
    with contextlib.suppress(OSError):
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        processor = model.group(1) if model else platform.processor()
    names = ("torch", "transformers", "numpy", "scipy", "dp-accounting", "tokenizers", "safetensors", "scikit-learn")
    return {
        "commit": commit + ("+changes in src" if changed else ""),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "processor": processor,
        "instructions": _ENVIRONMENT["ATEN_CPU_CAPABILITY"],
        "threads": 1,
    }


# --- the command line -------------------------------------------------------------------------------------------------


def write_record(folder: Path, values: Mapping[str, Any]) -> None:
    """Write a record as compressed JSON, the same bytes for the same values."""
    text = json.dumps(values, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    (folder / RECORD).write_bytes(gzip.compress(text.encode(), mtime=0))


def read_record(folder: Path) -> dict[str, Any]:
    """Return a record that was written before."""
    values: dict[str, Any] = json.loads(gzip.decompress((folder / RECORD).read_bytes()))
    return values


def report(before: Mapping[str, Any], after: Mapping[str, Any], whole: bool) -> int:
    """Print every difference that is not intended, and return 1 if there is one."""
    ran = {result["name"] for result in after["results"]}
    results = [result for result in before["results"] if result["name"] in ran]
    changes = read_changes(CHANGES)
    differences = compare_records(results, after["results"])
    left, unmet = settle(differences, changes)
    for name in ("versions", "processor", "instructions"):
        if before["made"][name] != after["made"][name]:
            print(f"Made otherwise: {name} was {before['made'][name]} and is {after['made'][name]}.")
    for difference in left:
        print(difference)
    if whole:
        for change in unmet:
            print(f"Intended, but it did not occur: {change.command} {change.path} ({change.reason})")
    broken = {difference.command for difference in left}
    print(
        f"{len(results)} commands compared, {len(differences) - len(left)} intended differences, "
        f"{len(left)} others in {len(broken)} commands" + (f": {', '.join(sorted(broken))}" if broken else "")
    )
    return int(bool(left) or (whole and bool(unmet)))


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="golden-again-") as temporary:
        yield Path(temporary)


def main(arguments: Sequence[str]) -> int:
    """Record the commands, or compare them with a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--again", type=Path, help="Folder of the second record; read if it holds one, else written.")
    parser.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="Names of commands; others are left out.")
    asked = parser.parse_args(arguments)
    if asked.what == "record":
        if (asked.folder / RECORD).exists():
            raise SystemExit(f"Expected no record at {asked.folder}. There is one; remove it, or name another folder.")
        commands, files = read_commands()
        record(chosen(commands, asked.only), files, asked.folder, None)
        return 0
    before = read_record(asked.folder)
    if asked.again is not None and (asked.again / RECORD).exists():
        return report(before, read_record(asked.again), not asked.only)
    aliases = tomllib.loads(COMMANDS.read_text(encoding="utf-8")).get("alias", [])
    commands = [with_aliases(command, aliases) for command in chosen(before["commands"], asked.only)]
    if asked.only:
        commands = [command for command in commands if not command.get("whole")]
    _, files = read_commands()  # with the present names of settings, which the recorded code may have called otherwise
    with _folder(asked.again) as folder:
        record(commands, files, folder, asked.folder)
        return report(before, read_record(folder), not asked.only)


def start(arguments: Sequence[str]) -> int:
    """Start again with the fixed environment, which libraries read when they are imported, then run."""
    if os.environ.get(_MARK) != "1":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISCREET_", "OMP_", "MKL_"))}
        environment = kept | _ENVIRONMENT | {_MARK: "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        os.execve(sys.executable, [sys.executable, "-m", "tools.golden", *arguments], environment)
    found = importlib.util.find_spec("discreet")
    if found is None or found.origin is None or ROOT / "src" not in Path(found.origin).parents:
        raise SystemExit(f"Expected the code of {ROOT / 'src'}, found {found and found.origin}.")
    return main(arguments)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
