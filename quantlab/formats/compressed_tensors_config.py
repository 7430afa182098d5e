"""The ``quantization_config`` of compressed-tensors: which modules carry which numbers.

One or several groups, each with targets (module names, ``re:`` patterns or class names) and a scheme; vllm-project/
compressed-tensors: src/compressed_tensors/quantization/quant_config.py and quant_args.py. A module that several groups
name belongs to the one that names it most narrowly: its name, then a pattern, then its class
(utils/match.py, ``match_targets``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.patterns import matches
from quantlab.errors import CheckpointError
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, NumberType, signed_int
from quantlab.tensors.quantized import Granularity, WeightFormat

_GRANULARITIES: dict[str, Granularity] = {
    "tensor": "tensor",
    "channel": "channel",
    "group": "group",
    "tensor_group": "group",
    "block": "block",
}
_SCALE_TYPES = {"torch.float8_e4m3fn": "float8_e4m3fn", "torch.uint8": "e8m0"}


@dataclass(frozen=True)
class Group:
    """One group of the config.

    Attributes:
        name: its key, for error messages.
        format: how its tensors lie (``pack-quantized``), the config's own format where the group has none.
        targets: module names, ``re:`` patterns, class names.
        weights: the scheme of the weights.
        raw: the group as the file has it.
    """

    name: str
    format: str
    targets: tuple[str, ...]
    weights: WeightFormat
    raw: Mapping[str, Any]

    @property
    def activations(self) -> Mapping[str, Any] | None:
        """The scheme of the inputs as the file has it."""
        found = self.raw.get("input_activations")
        return found if isinstance(found, Mapping) else None


def read_groups(facts: CheckpointFacts) -> list[Group]:
    """Return the weight groups of a checkpoint.

    Raises:
        CheckpointError: the config has none, or one that cannot be read; names the field.
    """
    config = facts.quantization_config or {}
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"{facts.path}: quantization_config.config_groups is missing or empty")
    found = []
    for name, raw in groups.items():
        where = f"{facts.path}: quantization_config.config_groups.{name}"
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{where} is not an object")
        if not isinstance(raw.get("weights"), Mapping):
            continue
        layout = str(raw.get("format") or config.get("format") or "")
        targets = raw.get("targets") or []
        if not isinstance(targets, list | tuple):
            raise CheckpointError(f"{where}.targets is {targets!r}, but must be a list of names")
        targets = tuple(str(target) for target in targets)
        found.append(Group(str(name), layout, targets, weight_format(raw["weights"], f"{where}.weights"), raw))
    return found


def group_of(module: str, groups: list[Group]) -> Group | None:
    """Return the group that names a module most narrowly, or None if none does."""
    bare = module.removesuffix(".weight")
    for group in groups:
        if bare in group.targets:
            return group
    for group in groups:
        if any(target.startswith("re:") and matches(target, bare) for target in group.targets):
            return group
    by_class = [group for group in groups if any(_is_class(target) for target in group.targets) or not group.targets]
    return by_class[0] if by_class else None


def _is_class(target: str) -> bool:
    return not target.startswith("re:") and "." not in target


def weight_format(weights: Mapping[str, Any], where: str) -> WeightFormat:
    """Read one scheme (``weights`` of a group).

    Raises:
        CheckpointError: an unknown type or strategy, or a size that is not a number; ``where`` names the field.
    """
    bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
    size, block = weights.get("group_size"), weights.get("block_structure")
    number = _number(bits, kind, where)
    strategy = str(weights.get("strategy") or _implied(size, block))
    if strategy not in _GRANULARITIES:
        raise CheckpointError(f"{where}.strategy is {strategy!r}, which no weight can have")
    granularity = _GRANULARITIES[strategy]
    if granularity == "group" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise CheckpointError(f"{where}.group_size is {size!r}, but strategy {strategy} needs a positive number")
    return WeightFormat(
        number,
        granularity,
        group_size=size if granularity == "group" else None,
        block=_block(block, where) if granularity == "block" else None,
        symmetric=bool(weights.get("symmetric", True)),
        scale_type=_SCALE_TYPES.get(str(weights.get("scale_dtype"))) or _implied_scale_type(number, granularity, size),
    )


def _implied(size: object, block: object) -> str:
    if block is not None:
        return "block"
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _implied_scale_type(number: NumberType, granularity: str, size: object) -> str | None:
    """Old FP4 configs name no scale dtype; the group size tells NVFP4 from MXFP4."""
    if number.name == FP4_E2M1.name and granularity == "group":
        return "float8_e4m3fn" if size == 16 else "e8m0"
    return None


def _number(bits: object, kind: object, where: str) -> NumberType:
    if kind == "int" and isinstance(bits, int) and 2 <= bits <= 8:
        return signed_int(bits)
    if kind == "float" and bits in (4, 8):
        return FP4_E2M1 if bits == 4 else FP8_E4M3FN
    raise CheckpointError(f"{where} has num_bits {bits!r} of type {kind!r}, which is not a known number type")


def _block(block: object, where: str) -> tuple[int, int]:
    if isinstance(block, str):
        block = [int(part) for part in block.lower().split("x") if part.isdecimal()]
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block):
        return int(block[0]), int(block[1])
    raise CheckpointError(f"{where}.block_structure is {block!r}, but must be two positive numbers")


def weights_json(scheme: WeightFormat) -> dict[str, Any]:
    """Return ``weights`` of a group for a scheme."""
    number = scheme.number
    strategy: str = scheme.granularity
    scale_dtype = {"e8m0": "torch.uint8", "float8_e4m3fn": "torch.float8_e4m3fn"}.get(scheme.scale_type or "")
    if scheme.scale_type == "float8_e4m3fn":
        strategy = "tensor_group"
    return {
        "num_bits": number.bits,
        "type": number.kind,
        "symmetric": scheme.symmetric,
        "strategy": strategy,
        "group_size": scheme.group_size if scheme.granularity == "group" else None,
        "block_structure": list(scheme.block) if scheme.block and scheme.granularity == "block" else None,
        "dynamic": False,
        "actorder": None,
        "scale_dtype": scale_dtype,
        "zp_dtype": scale_dtype or (None if scheme.symmetric else "torch.int8"),
        "observer": "memoryless_minmax",
        "observer_kwargs": {},
    }


def activations_json(kind: str, bits: int, strategy: str, **more: object) -> dict[str, Any]:
    """Return ``input_activations`` of a group; dynamic unless ``dynamic`` says otherwise."""
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "strategy": strategy,
        "group_size": None,
        "dynamic": True,
        "observer": None,
        "observer_kwargs": {},
        **more,
    }


def config_json(
    weights: Mapping[str, WeightFormat],
    activations: Mapping[str, Mapping[str, Any] | None],
    ignore: tuple[str, ...],
    layout: str | Mapping[str, str],
    source: CheckpointFacts,
) -> dict[str, Any]:
    """Return a whole ``quantization_config``.

    The scheme of most modules targets the class ``Linear``; modules of any other scheme are named one by one,
    which goes before the class.

    Args:
        weights: scheme of each quantized module.
        activations: input scheme of each quantized module.
        ignore: modules that stay dense.
        layout: the format, such as ``pack-quantized``, of all modules or by module.
        source: the checkpoint it came from; the KV cache's scheme is kept where that was compressed-tensors too.
    """
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for module, scheme in weights.items():
        inputs = activations.get(module)
        raw = {
            "weights": weights_json(scheme),
            "input_activations": dict(inputs) if inputs else None,
            "output_activations": None,
            "format": layout if isinstance(layout, str) else layout[module],
        }
        groups.setdefault(repr(raw), (raw, []))[1].append(module)
    ordered = sorted(groups.values(), key=lambda group: -len(group[1]))
    config_groups = {
        f"group_{number}": {"targets": ["Linear"] if number == 0 else sorted(modules), **raw}
        for number, (raw, modules) in enumerate(ordered)
    }
    old = source.quantization_config or {}
    return {
        "quant_method": "compressed-tensors",
        "format": _overall(layout),
        "quantization_status": "compressed",
        "config_groups": config_groups,
        "ignore": list(ignore),
        "kv_cache_scheme": old.get("kv_cache_scheme") if old.get("quant_method") == "compressed-tensors" else None,
        "global_compression_ratio": None,
    }


def _overall(layout: str | Mapping[str, str]) -> str:
    """Return the word of the whole config: the one format there is, or ``mixed-precision``."""
    if isinstance(layout, str):
        return layout
    every = set(layout.values())
    return every.pop() if len(every) == 1 else "mixed-precision"
