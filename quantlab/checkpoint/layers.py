"""Quantized layers of a checkpoint as its headers show them, whatever the format.

Which tensor names and dtypes hold codes, scales and zero points is data (``matrix/formats/<id>.yaml``:
``tensors``). A layer is what bears codes; its module name is the codes' name without the suffix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from quantlab.checkpoint.facts import Scheme, TensorInfo, WeightScheme
from quantlab.checkpoint.patterns import matches
from quantlab.checkpoint.safetensors_header import DTYPE_BITS
from quantlab.checkpoint.values import mapping, strings
from quantlab.matrix.data import read_section


@dataclass(slots=True)
class LayerTensors:
    """The tensors of one module.

    Attributes:
        module: module name, such as ``model.layers.0.mlp.down_proj``.
        codes: the packed or low-precision weight, or None where only scales are there.
        scales: by suffix, such as ``.weight_scale``.
        zeros: zero points by suffix.
        extra: what else the format keeps with a layer, by suffix.
        weights: the scheme that the config gives this module.
    """

    module: str
    codes: TensorInfo | None = None
    scales: dict[str, TensorInfo] = field(default_factory=dict)
    zeros: dict[str, TensorInfo] = field(default_factory=dict)
    extra: dict[str, TensorInfo] = field(default_factory=dict)
    weights: WeightScheme | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything in the headers, sorted.

    Attributes:
        layers: quantized layers by module.
        orphans: modules that have scales or zero points but no codes.
        dense: all tensors that belong to no quantized layer.
    """

    layers: dict[str, LayerTensors]
    orphans: dict[str, LayerTensors]
    dense: dict[str, TensorInfo]


def arrange(tensors: Mapping[str, TensorInfo], form: str, scheme: Scheme) -> Layout:
    """Sort the tensors of a checkpoint of format ``form`` (an id with or without its layout)."""
    roles = _roles(form.partition("/")[0])
    found: dict[str, LayerTensors] = {}
    dense: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        role, module, suffix = _role(name, tensor.dtype, roles)
        if role == "dense":
            dense[name] = tensor
            continue
        layer = found.setdefault(module, LayerTensors(module))
        if role == "codes":
            layer.codes = tensor
        else:
            getattr(layer, role)[suffix] = tensor
    layers = {module: layer for module, layer in found.items() if layer.codes is not None}
    find = scheme_of(scheme)
    for module, layer in layers.items():
        layer.weights = find(module)
    rest = {module: layer for module, layer in found.items() if layer.codes is None}
    for layer in rest.values():
        dense.update((tensor.name, tensor) for tensor in layer.extra.values())
    orphans = {module: layer for module, layer in rest.items() if layer.scales or layer.zeros}
    return Layout(layers, orphans, dense)


Roles = tuple[tuple[str, str, frozenset[str]], ...]


@lru_cache(maxsize=64)
def _roles(form: str) -> Roles:
    """Return (suffix, role, dtypes of codes) triples, the longest suffix first."""
    tensors = mapping(mapping(read_section("formats").get(form)).get("tensors"))
    codes = mapping(tensors.get("codes"))
    triples = [(suffix, "codes", frozenset(strings(dtypes))) for suffix, dtypes in codes.items()]
    for role in ("scales", "zeros", "extra"):
        triples += [(suffix, role, frozenset()) for suffix in strings(tensors.get(role))]
    return tuple(sorted(triples, key=lambda triple: -len(triple[0])))


def _role(name: str, dtype: str, roles: Roles) -> tuple[str, str, str]:
    for suffix, role, dtypes in roles:
        if name.endswith(suffix):
            if role == "codes" and dtype not in dtypes:
                return "dense", "", ""
            return role, name[: -len(suffix)], suffix
    return "dense", "", ""


def scheme_of(scheme: Scheme) -> Callable[[str], WeightScheme | None]:
    """Return a function that gives the weight scheme of a module: the most exact target wins.

    Targets can be as many as modules, so that names are looked up and only patterns are tried one by one.
    """
    if len(scheme.groups) <= 1:
        return lambda _: scheme.weights
    named: dict[str, WeightScheme] = {}
    patterns: list[tuple[str, WeightScheme]] = []
    default: WeightScheme | None = None
    for group in scheme.groups:
        for target in group.targets:
            if target in {"Linear", "Embedding"}:
                default = default or group.weights
            elif target.startswith("re:") or any(sign in target for sign in "*?["):
                patterns.append((target, group.weights))
            else:
                named.setdefault(target, group.weights)

    def find(module: str) -> WeightScheme | None:
        for part in _parts(module):
            if part in named:
                return named[part]
        return next((weights for pattern, weights in patterns if matches(pattern, module)), default)

    return find


def _parts(module: str) -> Iterator[str]:
    """Yield the module's name and every run of its components, the longest first (at most 16 components)."""
    yield module
    components = module.split(".")[:16]
    for length in range(len(components), 0, -1):
        for begin in range(len(components) - length + 1):
            yield ".".join(components[begin : begin + length])


def elements(layer: LayerTensors, scheme: Scheme, storage_bits: float | None = None) -> int:
    """Return how many weights a layer's codes stand for."""
    codes = layer.codes
    if codes is None:
        return 0
    stored = math.prod(codes.shape)
    width = DTYPE_BITS.get(codes.dtype, 8)
    if codes.dtype.startswith("F8"):
        return stored
    bits = storage_bits or _code_bits(layer, codes, scheme)
    return round(stored * width / bits) if bits and bits <= width else stored


def _code_bits(layer: LayerTensors, codes: TensorInfo, scheme: Scheme) -> float | None:
    stated = layer.weights.bits if layer.weights is not None else None
    if codes.dtype == "I8" and layer.weights is not None and layer.weights.type == "int":
        return 8  # narrower integers stay one a byte in int8; formats that pack them say so (storage_bits)
    if stated and not (codes.dtype in {"U8", "I8"} and scheme.mixed and stated == 8):
        return stated
    # A mixture whose targets do not settle it: bytes beside FP8 layers hold 4-bit pairs.
    candidates = {group.weights.bits for group in scheme.groups if group.weights.bits}
    whole_bytes = any(group.weights.bits == 8 and group.weights.type == "int" for group in scheme.groups)
    if codes.dtype in {"U8", "I8"} and not whole_bytes and 4 in candidates:
        return 4
    return stated
