"""CSV and TSV files that are easy to misread, by our reader and by those of libraries; and the time for a large file.

    python -m benchmarks.csv_readers [--packages PATH]

`--packages` is a folder of installed packages with clevercsv (pandas comes with the federated extra). For each case
there is one right outcome: rows, or an error because a file is damaged or fits two readings. The bad results are
"misread", which is other rows without an error, and "not rejected", rows of a file that should be an error. The table
is in docs/decisions/csv.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from discreet.core.errors import DataError
from discreet.data.tables import read_table

Rows = list[list[str]]
HEADER = ["text", "label"]
COLA = 'id\tlabel\ttext\na\t1\t"Who did it?\nb\t0\tHe said so."\nc\t1\tNo.\n'  # or two rows
# name: suffix, content, the right rows or None for an error
CASES: dict[str, tuple[str, bytes, Rows | None]] = {
    "separators, marks and line ends in quoted fields": (
        ".csv", b'text,label\n"a, ""b""\nc",1\n', [HEADER, ['a, "b"\nc', "1"]]),
    "words that look like numbers or missing values": (
        ".csv", b"text,label\nNA,001\nnull,1e5\nTrue,\n", [HEADER, ["NA", "001"], ["null", "1e5"], ["True", ""]]),
    "spaces at the ends of a field": (".csv", b"text,label\n a ,1\n", [HEADER, [" a ", "1"]]),
    "a carriage return in a quoted field": (".csv", b'text,label\n"a\rb",1\n', [HEADER, ["a\rb", "1"]]),
    "line separators of Unicode": (
        ".csv", "text,label\na\u2028b\x0bc\x85,1\n".encode(), [HEADER, ["a\u2028b\x0bc\x85", "1"]]),
    "a byte-order mark, and \\r\\n": (".csv", b"\xef\xbb\xbftext,label\r\na,1\r\n", [HEADER, ["a", "1"]]),
    "\\r alone ends lines": (".csv", b"text,label\ra,1\rb,2\r", [HEADER, ["a", "1"], ["b", "2"]]),
    "blank lines": (".csv", b"text,label\n\na,1\n\n", [HEADER, ["a", "1"]]),
    "TSV without quoting, a mark inside": (".tsv", b'text\tlabel\nsay "no"\t1\n', [HEADER, ['say "no"', "1"]]),
    "TSV without quoting, one field begins with a mark": (
        ".tsv", b'text\tlabel\n"Who?\t1\nb\t0\n', [HEADER, ['"Who?', "1"], ["b", "0"]]),
    "TSV with quoting, a tab in a field": (".tsv", b'text\tlabel\n"a\tb"\t1\n', [HEADER, ["a\tb", "1"]]),
    "TSV as in CoLA: one row begins with a mark, a later one ends with one": (".tsv", COLA.encode(), None),
    "TSV that fits both readings": (".tsv", b'text\tlabel\n"a"\t1\n"b"\t0\n', None),
    "spreadsheet's first line sep=;": (".csv", b"sep=;\ntext;label\na;1\n", [HEADER, ["a", "1"]]),
    "semicolons where commas are expected": (".csv", b"text;label\na, b;1\n", None),
    "a row with a field too many": (".csv", b"text,label\na,b,1\nc,0\n", None),
    "a row with a field too few": (".csv", b"text,label\na\nc,0\n", None),
    "an unclosed mark": (".csv", b'text,label\n"a,1\nb,0\n', None),
    "letters after a closing mark": (".csv", b'text,label\n"a"b,1\n', None),
    "Windows-1252": (".csv", "text,label\ncafé,1\n".encode("cp1252"), None),
    "UTF-16": (".csv", "text,label\na,1\n".encode("utf-16"), None),
    "a NUL byte": (".csv", b"text,label\na\0b,1\n", None),
}  # fmt: skip


def ours(path: Path) -> Rows:
    table = read_table(path)
    columns = [table.read(name) for name in table.names]
    return [list(table.names), *map(list, zip(*columns, strict=True))]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig")


def module(path: Path) -> Rows:
    text = _text(path)
    return list(
        csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    )


def sniffer(path: Path) -> Rows:
    text = _text(path)
    return list(csv.reader(io.StringIO(text, newline=""), csv.Sniffer().sniff(text)))


def clever(path: Path) -> Rows:
    import clevercsv

    text = _text(path)
    return [list(row) for row in clevercsv.reader(io.StringIO(text, newline=""), clevercsv.Sniffer().sniff(text))]


def by_pandas(path: Path) -> Rows:
    import pandas

    warnings.simplefilter("error", pandas.errors.ParserWarning)  # a row with a field too many
    separator = "\t" if path.suffix == ".tsv" else ","
    frame = pandas.read_csv(
        path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False
    )
    return [list(frame.columns), *frame.values.tolist()]


def by_pyarrow(path: Path) -> Rows:
    import pyarrow
    from pyarrow import csv as arrow

    separator = "\t" if path.suffix == ".tsv" else ","
    parse = arrow.ParseOptions(delimiter=separator, newlines_in_values=True)
    names = arrow.open_csv(path, parse_options=parse).schema.names
    convert = arrow.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    table = arrow.read_csv(path, parse_options=parse, convert_options=convert)
    return [names, *map(list, zip(*(column.to_pylist() for column in table.columns), strict=True))]


READERS: dict[str, Callable[[Path], Rows]] = {
    "ours": ours,
    "csv, strict": module,
    "csv.Sniffer": sniffer,
    "clevercsv": clever,
    "pandas": by_pandas,
    "pyarrow.csv": by_pyarrow,
}


def outcome(read: Callable[[Path], Rows], path: Path, right: Rows | None) -> str:
    try:
        rows = read(path)
    except DataError:
        return "right" if right is None else "rejected"
    except Exception as error:
        return f"{'right' if right is None else 'rejected'} ({type(error).__name__})"
    return "not rejected" if right is None else "right" if rows == right else "misread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", help="a folder of packages that are not in this environment")
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args()
    if options.packages:
        sys.path.append(options.packages)
    print("| file |", " | ".join(READERS), "|")
    print("|---|" + "---|" * len(READERS))
    totals = dict.fromkeys(READERS, 0)
    with tempfile.TemporaryDirectory() as folder:
        for name, (suffix, content, right) in CASES.items():
            path = Path(folder, f"a{suffix}")
            path.write_bytes(content)
            found = {reader: outcome(read, path, right) for reader, read in READERS.items()}
            for reader, result in found.items():
                totals[reader] += result in ("misread", "not rejected")
            print(f"| {name} | {' | '.join(found.values())} |", flush=True)
        print(f"| misread or not rejected | {' | '.join(map(str, totals.values()))} |")
        path = Path(folder, "large.csv")
        rows = [
            [f'note {i}, "as said"' if i % 4 == 0 else f"a longer note about patient {i} " * 4, str(i % 2)]
            for i in range(options.rows)
        ]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
        times = []
        for reader, read in READERS.items():
            if "lever" in reader or "Sniffer" in reader:
                times.append("-")
                continue
            began = time.process_time()
            assert len(read(path)) == options.rows + 1
            times.append(f"{time.process_time() - began:.2f} s")
        print(f"| {options.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
