"""Read and write frozen dataclasses as TOML; unknown and missing keys are rejected."""

from __future__ import annotations

import dataclasses
import enum
import tomllib
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from discreet.core.errors import SettingError, did_you_mean, first_line, invalid, shown
from discreet.core.rules import RULE, Rule

T = TypeVar("T")


def option(text: str, panel: str, default: str | None = None, rule: Rule | None = None) -> dict[str, Any]:
    """Return the metadata of a dataclass field that users set: one sentence of help, and its heading in the help.

    `default` is shown instead of the field's own default, if another part of the program replaces it. `rule` is what
    `check_fields` checks.
    """
    more = {"default": default, RULE: rule}
    return {"help": text, "panel": panel} | {name: value for name, value in more.items() if value is not None}


def option_field(
    default: Any, text: str, panel: str, default_text: str | None = None, *, show: bool = True, rule: Rule | None = None
) -> Any:
    """Return a dataclass field that users set, with the metadata of `option`; `show` puts it into the repr."""
    return dataclasses.field(default=default, repr=show, metadata=option(text, panel, default_text, rule))


def parse(kind: type[T], values: dict[str, Any], where: str = "settings") -> T:
    """Return a frozen dataclass from plain values; raise SettingError for unknown and missing keys.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Bread:
    ...     flour: float
    ...     salt: float = 0.02
    >>> parse(Bread, {"flour": 1, "slat": 0.01})
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected only known keys in settings, got 'slat'. Did you mean 'salt'?
    """
    hints = _hints(kind)  # type: ignore[arg-type]
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            guess = did_you_mean(key, list(fields)) or f"Known keys: {', '.join(fields)}."
            raise SettingError(f"Expected only known keys in {where}, got {shown(key)}. {guess}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise SettingError(f"Expected key {name!r} in {where}. It has no default; add it.")
    return kind(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()})


def read(kind: type[T], path: Path) -> T:
    """Return a frozen dataclass from a TOML file."""
    return parse(kind, read_values(path), path.name)


def read_values(path: Path, what: str = "settings") -> dict[str, Any]:
    """Return the plain values of a TOML file; `what` names its contents in errors."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"Expected a {what} file at {str(path)!r}. There is none; check the path.") from None
    except IsADirectoryError:
        raise SettingError(f"Expected a {what} file at {str(path)!r}. It is a folder.") from None
    except OSError as error:
        raise SettingError(f"Expected to read {str(path)!r}. {error.strerror}; check the path.") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise SettingError(f"Expected TOML in {str(path)!r}. {first_line(error)}.") from None
    except RecursionError:
        raise SettingError(f"Expected TOML in {str(path)!r}. It is nested too deeply; flatten it.") from None


def dump(settings: Any) -> str:
    """Return a frozen dataclass as TOML without the values that are None, which TOML cannot express."""
    return as_toml(dataclasses.asdict(settings))


def as_toml(values: Mapping[str, Any]) -> str:
    """Return plain values as TOML without those that are None.

    tomli_w writes a list of small tables as a list of inline tables. Here each has its own header, as people write
    them, unless a table holds tables of its own.

    >>> print(as_toml({"name": "a", "data": {"source": "notes", "rows": None}, "attack": [{"name": "dager"}]}), end="")
    name = "a"
    <BLANKLINE>
    [data]
    source = "notes"
    <BLANKLINE>
    [[attack]]
    name = "dager"
    """
    import tomli_w

    plain = without_none(values)
    lists = {key: plain.pop(key) for key, value in values.items() if _is_bare(key) and _are_flat_tables(value)}
    tables = [f"[[{key}]]\n{tomli_w.dumps(table)}" for key, rows in lists.items() for table in rows]
    return "\n".join([part for part in (tomli_w.dumps(plain), *tables) if part])


def _is_bare(key: str) -> bool:
    return key.isascii() and key.isidentifier()


def _are_flat_tables(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(table, Mapping) and not any(map(_holds_table, table.values())) for table in value)
    )


def _holds_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_holds_table, value)))


def as_dict(settings: Any) -> dict[str, Any]:
    """Return a frozen dataclass as plain values without those that are None."""
    return without_none(dataclasses.asdict(settings))


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values without those that are None, in tables and lists of tables too."""
    return {key: _without_none(value) for key, value in values.items() if value is not None}


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_none(value)
    return [_without_none(one) for one in value] if isinstance(value, list | tuple) else value


@lru_cache(maxsize=256)
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [a for a in arguments if a is not type(None)]
        if value is None and type(None) in arguments:
            return None
        errors: list[SettingError] = []
        for option in options:
            try:
                return _convert(option, value, where)
            except SettingError as error:
                errors.append(error)
        raise errors[0]
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return parse(typing.cast(type[Any], hint), value, where)
    if origin is tuple and isinstance(value, list | tuple):
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(inner) != len(value):
            raise invalid(where, value, f"{len(inner)} values")
        return tuple(_convert(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(inner, value, strict=True)))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return hint(_one_of(where, value, [str(one) for one in hint]))
    if origin is typing.Literal:
        return _one_of(where, value, arguments)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise invalid(where, value, "a number below 1e308") from None
    kind = origin or hint
    if kind is Any or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
        return value
    raise invalid(where, value, f"of type {getattr(kind, '__name__', kind)}")


def _one_of(where: str, value: Any, allowed: typing.Sequence[Any]) -> Any:
    if value not in allowed:
        raise invalid(where, value, f"one of {', '.join(map(str, allowed))}")
    return value
