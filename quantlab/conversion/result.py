"""What a conversion did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion.

    Attributes:
        source: folder or hub id.
        output: folder that was written.
        case: ``quantize``, ``repack``, ``dequantize``, ``cast``, ``requantize`` or ``quantizer``.
        source_format: format id of the source.
        target_format: format id of the output.
        layers: number of layers by the class that holds for them.
        kept_dense: linear layers that stay dense.
        changed: layers of another scheme than planned, with the reason; ``requantized`` where numbers changed.
        bytes: ``read`` from the source and ``written`` in weight files.
        seconds: wall time by phase: ``plan``, ``convert``, ``verify``, ``hash``, ``flush``; what cannot be asked for
            alone is left out.
        proof: what verification found, or None where it was not asked for.
        notes: what the user should know.
        quantizer: library versions, call and notes where a library did the work.
    """

    source: str
    output: str
    case: str
    source_format: str
    target_format: str
    layers: dict[str, int]
    kept_dense: tuple[str, ...]
    changed: tuple[dict[str, Any], ...]
    bytes: dict[str, int]
    seconds: dict[str, float]
    proof: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    quantizer: dict[str, Any] | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab convert``."""
        content = asdict(self)
        for key in ("kept_dense", "changed", "notes"):
            content[key] = list(content[key])
        return content
