"""A library's options: typed frozen dataclasses, read from presets and ``--set KEY=VALUE``."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from quantlab.errors import UnknownNameError, UsageError

Options = TypeVar("Options")

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_options(kind: type[Options], values: Mapping[str, Any], owner: str) -> Options:
    """Return ``values`` as an instance of the dataclass ``kind``.

    Args:
        kind: a frozen dataclass whose fields are bool, int, float, str, Literal, tuples of str or optional ones.
        values: option name to value; text is converted (``"true"``, ``"64"``).
        owner: the library's name in error messages.

    Raises:
        UnknownNameError: the library has no such option; offers the nearest.
        UsageError: a value does not fit its option.
    """
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"{owner} option", name, known, hint=f"options: {', '.join(known)}")
    return kind(**{name: _convert(value, hints[name], f"{owner} option {name}") for name, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in {Union, types.UnionType}:
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        if value is None or value in {"none", "null"}:
            return None
        return _convert(value, choices[0], where)
    if origin is Literal:
        chosen = next((c for c in get_args(hint) if c == value or str(c) == str(value)), None)
        if chosen is None or isinstance(value, bool) is not isinstance(chosen, bool):
            raise UsageError(f"{where} is {value!r}", hint=f"one of {', '.join(map(str, get_args(hint)))}")
        return chosen
    if origin is tuple:
        return tuple(map(str, [value] if isinstance(value, str) else value))
    return _scalar(value, hint, where)


def _scalar(value: Any, hint: type, where: str) -> Any:
    if hint is bool:
        word = _WORDS.get(str(value).lower())
        if word is None:
            raise UsageError(f"{where} is {value!r}", hint="true or false")
        return word
    if hint in {int, float} and not isinstance(value, bool):
        try:
            number = hint(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{where} is {value!r}", hint=f"a number ({hint.__name__})") from error
        if not isinstance(value, float) or float(number) == value:
            return number
    if hint is str and isinstance(value, str):
        return value
    raise UsageError(f"{where} is {value!r}", hint=f"expected {hint.__name__}")


def option_values(options: Any) -> Mapping[str, Any]:
    """Return a frozen options dataclass as a mapping, for clauses to look at."""
    return {name: getattr(options, name) for name in type(options).__dataclass_fields__}
