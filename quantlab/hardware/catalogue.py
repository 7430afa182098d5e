"""The catalogue of gpus: architectures and the products that carry them, read from ``matrix/gpus``.

A gpu is named by its architecture id (``gfx942``), a product as people write it (``MI300X``, ``RTX 3090``), or the
string that a driver reports (``AMD Instinct MI300X OAM``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from quantlab.errors import UnknownNameError
from quantlab.matrix.data import read_section

GIB = 2**30

NOISE = re.compile(r"\b(nvidia|amd|intel|geforce|radeon|instinct|tesla|graphics|gpu|card|apu|oam|vf)\b|\(r\)|\(tm\)")
"""Words of driver strings and catalogues that do not tell products apart."""

NOISE_ANYWHERE = re.compile(NOISE.pattern, re.IGNORECASE)

MEMORY = re.compile(r"[\s\-]*\b(\d+) ?gi?b\b.*$")
"""Memory at the end of a name, in GB as vendors print it, and what follows it (``H100 80GB HBM3``)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An architecture, or one product of it.

    Attributes:
        arch: architecture id, such as ``sm_90`` or ``gfx942``.
        vendor: ``nvidia``, ``amd``, ``intel``, ``apple`` or ``cpu``.
        backend: ``cuda``, ``rocm``, ``xpu``, ``hpu``, ``mps`` or ``cpu``.
        family: the vendor's name of the architecture.
        dtypes: number type to ``native``, ``converted``, ``emulated``, ``none`` or ``unknown``.
        torch_capability: what ``torch.cuda.get_device_capability()`` gives; never enough to tell a gpu by.
        wavefront: threads that run in step.
        product: product name, or None where an architecture was asked for.
        memory_bytes: device memory of one device, in bytes; the largest where a product is sold with several.
        memory_options_bytes: the sizes that a product is sold with, where they are several.
        bandwidth_bytes_per_second: memory bandwidth of one device.
        devices_per_card: devices that one card shows (two on MI250).
        unified_memory: memory is shared with the host.
        confidence: how sure the product's figures are.
        notes: what a user should know.
        sources: source ids.
        instruction_sets: processor flag to the number types that it makes native (CPUs).
    """

    arch: str
    vendor: str
    backend: str
    family: str
    dtypes: Mapping[str, str]
    torch_capability: tuple[int, int] | None = None
    wavefront: int | None = None
    product: str | None = None
    memory_bytes: int | None = None
    memory_options_bytes: tuple[int, ...] = ()
    bandwidth_bytes_per_second: float | None = None
    devices_per_card: int = 1
    unified_memory: bool = False
    confidence: str | None = None
    notes: str | None = None
    sources: tuple[str, ...] = ()
    instruction_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def supports(self, dtype: str) -> bool:
        """Return whether the matrix units compute in a number type themselves."""
        return self.dtypes.get(dtype) == "native"


@dataclass(frozen=True, slots=True)
class _Names:
    """Gpus by plain name."""

    architectures: Mapping[str, Gpu]
    products: Mapping[str, Gpu]
    known: tuple[str, ...]


def gpu(name: str) -> Gpu:
    """Return the gpu of an architecture id or product name; a size in the name (``RTX 3060 8GB``) picks its memory.

    Raises:
        UnknownNameError: nothing is called so; the hint offers the nearest names.
    """
    names = _names()
    plain = name.strip().lower()
    architecture = names.architectures.get(plain.split(":")[0])
    if architecture is not None:
        return architecture
    for part in (plain, MEMORY.sub("", plain), plain.partition("/")[0], plain.partition("[")[2]):
        found = names.products.get(_plain(part))
        if found is not None:
            return _with_memory(found, MEMORY.search(plain))
    raise UnknownNameError("gpu", name, names.known, hint="quantlab matrix --format json lists the gpus")


def _with_memory(found: Gpu, told: re.Match[str] | None) -> Gpu:
    size = int(told.group(1)) * GIB if told is not None else None
    return replace(found, memory_bytes=size) if size in found.memory_options_bytes else found


def architectures() -> Mapping[str, Gpu]:
    """Return every architecture by id, in the order of the data."""
    return _names().architectures


def products(arch: str | None = None) -> list[Gpu]:
    """Return every product, or those of one architecture."""
    seen = {id(item): item for item in _names().products.values() if item.product is not None}
    return [item for item in seen.values() if arch in (None, item.arch)]


@lru_cache(maxsize=1)
def _names() -> _Names:
    archs: dict[str, Gpu] = {}
    products_by_name: dict[str, Gpu] = {}
    known: list[str] = []
    for content in read_section("gpus").values():
        for arch, raw in content["architectures"].items():
            archs[arch] = _architecture(arch, raw)
            for alias in raw.get("aliases") or ():
                products_by_name.setdefault(_plain(alias), archs[arch])
            for product_id, product in (raw.get("products") or {}).items():
                item = _product(archs[arch], product)
                labels = [product_id, product["name"], *map(str, product.get("aliases") or ())]
                known += [NOISE_ANYWHERE.sub("", label).strip() for label in labels[1:]]
                for label in labels:
                    products_by_name.setdefault(_plain(label), item)
    return _Names(archs, products_by_name, (*archs, *known))


def _plain(name: str) -> str:
    """Return a name without vendor words, case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9+]", "", NOISE.sub(" ", name.lower()))


def _architecture(arch: str, raw: Mapping[str, Any]) -> Gpu:
    capability = raw.get("torch_capability")
    return Gpu(
        arch=arch,
        vendor=str(raw["vendor"]),
        backend=str(raw["backend"]),
        family=str(raw["family"]),
        dtypes=dict(raw["dtypes"]),
        torch_capability=(int(capability[0]), int(capability[1])) if capability else None,
        wavefront=raw.get("wavefront"),
        notes=raw.get("notes"),
        sources=tuple(raw.get("sources") or ()),
        instruction_sets={flag: tuple(types) for flag, types in (raw.get("instruction_sets") or {}).items()},
    )


def _product(arch: Gpu, raw: Mapping[str, Any]) -> Gpu:
    memory, bandwidth = raw.get("memory"), raw.get("bandwidth")
    return Gpu(
        arch=arch.arch,
        vendor=arch.vendor,
        backend=arch.backend,
        family=arch.family,
        dtypes=arch.dtypes,
        torch_capability=arch.torch_capability,
        wavefront=arch.wavefront,
        product=str(raw["name"]),
        memory_bytes=int(memory * GIB) if memory is not None else None,
        memory_options_bytes=tuple(int(size * GIB) for size in raw.get("memory_options") or ()),
        bandwidth_bytes_per_second=float(bandwidth) * 1e9 if bandwidth is not None else None,
        devices_per_card=int(raw.get("devices_per_card") or 1),
        unified_memory=bool(raw.get("unified_memory")),
        confidence=raw.get("confidence"),
        notes=raw.get("notes") or arch.notes,
        sources=tuple(raw.get("sources") or ()) or arch.sources,
        instruction_sets=arch.instruction_sets,
    )
