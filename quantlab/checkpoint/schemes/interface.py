"""What a scheme reader is: it turns one kind of quantization config into a scheme.

A reader is a pure function of JSON objects. Which reader a format uses, the keys it looks at, their defaults and
the constants of the format are data (``matrix/formats/<id>.yaml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quantlab.checkpoint.facts import Finding, Scheme


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader may look at.

    Attributes:
        format: the format's own data, from ``matrix/formats``.
        block: the quantization config, wherever it was found.
        config: the whole ``config.json`` (empty if there is none).
        companions: other JSON files by name.
    """

    format: Mapping[str, Any]
    block: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    companions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader found.

    Attributes:
        scheme: the numbers.
        format: a format id more exact than the one asked for (``compressed-tensors/int-quantized``), or None.
        ignore: modules that stay dense, as the config writes them.
        findings: what is wrong or unusual in the config itself.
    """

    scheme: Scheme
    format: str | None = None
    ignore: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class SchemeReader(Protocol):
    """Reads one kind of quantization config; never raises on bad input."""

    def __call__(self, source: Source) -> Reading:
        """Return what the config says."""
