"""How much code there is: files and code lines of every package, without blank lines, docstrings and comments.

python -m tools.code_size                  the working tree
python -m tools.code_size COMMIT [COMMIT]  one commit, or two side by side
python -m tools.code_size --write          update the table in docs/architecture.md, which a test compares
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
_TITLE = "| package | files | code lines |"
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return the number of lines that hold code.

    >>> code_lines('x = 1  # one' + chr(10) + chr(10) + 'def f():' + chr(10) + '    "doc"' + chr(10) + '    return x')
    3
    """
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docs |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def sources(commit: str | None) -> dict[str, str]:
    """Return the Python files of the package by their path, of a commit or of the working tree."""
    if commit is None:
        folder = ROOT / "src" / "discreet"
        return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in folder.rglob("*.py")}
    packed = subprocess.run(
        ["git", "archive", commit, "src/discreet"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = [name for name in archive.getnames() if name.endswith(".py")]
        files = {name: archive.extractfile(name) for name in names}
        return {
            name.removeprefix("src/discreet/"): file.read().decode() for name, file in files.items() if file is not None
        }


def measure(commit: str | None) -> tuple[Counter[str], Counter[str]]:
    """Return the number of files and of code lines of every package; single modules count as `(top)`."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for name, source in sources(commit).items():
        package = name.split("/")[0] if "/" in name else "(top)"
        files[package] += 1
        lines[package] += code_lines(source)
    return files, lines


def table() -> str:
    """Return the packages of the working tree as a Markdown table."""
    files, lines = measure(None)
    rows = [f"| {name} | {files[name]} | {lines[name]:,} |" for name in sorted(files)]
    total = f"| all | {files.total()} | {lines.total():,} |"
    return "\n".join([_TITLE, "|---|---|---|", *rows, total, ""])


def recorded() -> dict[str, int]:
    """Return the code lines of each package in the table of docs/architecture.md."""
    text = PAGE.read_text(encoding="utf-8").partition(_TITLE)[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[1:]]
    return {name: int(lines.replace(",", "")) for name, _, lines in cells}


def write() -> None:
    """Update the table in docs/architecture.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_TITLE)
    PAGE.write_text(before + table() + "\n" + rest.partition("\n\n")[2], encoding="utf-8")


def main(given: list[str]) -> None:
    """Print a table of the packages."""
    if given == ["--write"]:
        write()
        return
    sides = [measure(commit) for commit in given] or [measure(None)]
    for package in sorted({name for files, _ in sides for name in files}):
        print(f"{package:14}", *(f"{files[package]:5} files {lines[package]:7,} lines" for files, lines in sides))
    totals = [lines.total() for _, lines in sides]
    print(f"{'all':14}", *(f"{files.total():5} files {lines.total():7,} lines" for files, lines in sides))
    if len(totals) == 2:
        print(f"{totals[1] / totals[0] - 1:+.1%} code lines")


if __name__ == "__main__":
    main(sys.argv[1:])
