"""What a machine is, as one frozen value: devices, torch, drivers, variables, packages.

``this_machine()`` reads it here; a recorded description (``to_dict()`` as JSON) stands in for a machine that is not
at hand, so that what is said of ROCm, XPU and MPS machines is tested on any.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a program can compute on.

    Attributes:
        index: number in the order that its driver lists it.
        vendor: ``nvidia``, ``amd``, ``intel``, ``apple`` or ``cpu``.
        arch: architecture id (``gfx942``), without feature suffix; None where it was not told.
        name: product string of the driver.
        memory_bytes: device memory, or None.
        features: suffix of an AMD architecture (``sramecc+:xnack-``).
        told_by: what told it: ``nvidia-smi``, ``kfd``, ``rocm-smi``, ``torch``, ``cpuinfo``.
    """

    index: int
    vendor: str
    arch: str | None
    name: str
    memory_bytes: int | None = None
    features: str | None = None
    told_by: str = ""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, as a child process saw it.

    Attributes:
        version: such as ``2.13.0+rocm7.2``.
        hip: ``torch.version.hip``, set on ROCm builds only; looked at before any capability number.
        cuda: ``torch.version.cuda``, set on CUDA builds only.
        xpu, mps: the build computes there.
        available: an accelerator can be used.
        devices: what torch sees.
        arch_list: architectures the build carries code for.
        error: why it could not be asked.
    """

    version: str
    hip: str | None = None
    cuda: str | None = None
    xpu: bool = False
    mps: bool = False
    available: bool = False
    devices: tuple[Device, ...] = ()
    arch_list: tuple[str, ...] = ()
    error: str | None = None

    @property
    def kind(self) -> str:
        """Return ``rocm``, ``cuda``, ``xpu``, ``mps`` or ``cpu``."""
        if self.hip:
            return "rocm"
        if self.cuda:
            return "cuda"
        return "xpu" if self.xpu else "mps" if self.mps else "cpu"


VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_DEVICE_ORDER",
    "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "HSA_OVERRIDE_GFX_VERSION", "PYTORCH_TUNABLEOP_ENABLED",
    "VLLM_ROCM_USE_AITER", "SGLANG_USE_AITER", "PYTORCH_ROCM_ARCH", "HF_HUB_OFFLINE",
)  # fmt: skip
"""Environment variables that decide which devices are seen and which kernels run."""


OWN_BACKEND = {"amd": "rocm", "nvidia": "cuda", "intel": "xpu", "apple": "mps"}
"""The stack that drives a vendor's gpus, as torch's builds are named."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that ``doctor`` judges.

    Attributes:
        system: ``Linux``, ``Darwin`` or ``Windows``; ``processor``: ``x86_64``, ``aarch64``, ``arm64``.
        cpu_flags: instruction sets of the processor.
        memory_bytes: host memory.
        shm_bytes: size of /dev/shm, or None.
        devices: accelerators, then the processor.
        drivers: ``nvidia`` and ``amdgpu`` driver versions, ``rocm`` version, where they are known.
        unreadable: device files that exist and cannot be opened.
        missing: device files that the kernel's topology promises and that are not there (a container without them).
        variables: those of ``VARIABLES`` that are set, empty values too.
        packages: installed distributions.
        torch: the torch build, or None where torch is not installed.
    """

    system: str
    processor: str
    python: str
    memory_bytes: int | None
    shm_bytes: int | None
    devices: tuple[Device, ...]
    cpu_flags: tuple[str, ...] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    torch: TorchBuild | None = None

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """Return the devices that are no processors."""
        return tuple(device for device in self.devices if device.vendor != "cpu")

    @property
    def vendors(self) -> frozenset[str]:
        """Return the vendors of the accelerators."""
        return frozenset(device.vendor for device in self.accelerators)

    @property
    def backend(self) -> str:
        """Return the stack that reads the visible-device variables: torch's where it fits a gpu, else the gpus'."""
        own = [OWN_BACKEND[device.vendor] for device in self.accelerators if device.vendor in OWN_BACKEND]
        if self.torch is not None and self.torch.kind != "cpu" and (not own or self.torch.kind in own):
            return self.torch.kind
        return own[0] if own else "cpu"

    @property
    def main_device(self) -> Device:
        """Return what ``--gpu local`` means: the first accelerator, or the processor."""
        return self.devices[0]

    def to_dict(self) -> dict[str, Any]:
        """Return a description that ``read_machine`` takes back."""
        return asdict(self)


def this_machine(*, ask_torch: bool = True) -> Machine:
    """Describe the machine that this runs on.

    Args:
        ask_torch: start a child process that imports torch; without it only drivers and files are asked.
    """
    from quantlab.hardware import probes

    packages = installed_packages()
    torch = probes.ask_torch(packages["torch"]) if ask_torch and "torch" in packages else None
    accelerators = probes.accelerators()
    if torch is not None:
        accelerators = completed(accelerators, torch.devices) if accelerators else list(torch.devices)
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        python=".".join(map(str, sys.version_info[:3])),
        memory_bytes=probes.host_memory(),
        shm_bytes=probes.shared_memory(),
        devices=(*accelerators, probes.processor()),
        cpu_flags=probes.cpu_flags(),
        drivers=probes.drivers(),
        unreadable=probes.unreadable_device_files(),
        missing=probes.missing_device_files(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        packages=packages,
        torch=torch,
    )


def completed(told: list[Device], by_torch: tuple[Device, ...]) -> list[Device]:
    """Return the devices of drivers and kernel with torch's product names and feature suffixes.

    The kernel names a die, not a product; torch numbers what the variables leave visible. So only an architecture
    whose devices all bear one name in torch says what the others of that architecture are called.
    """
    filled = []
    for device in told:
        names = {(seen.name, seen.features) for seen in by_torch if seen.arch == device.arch}
        if device.arch is not None and len(names) == 1:
            name, features = next(iter(names))
            named = device.name if device.told_by != "kfd" else name
            device = replace(device, name=named, features=device.features or features)  # noqa: PLW2901
        filled.append(device)
    return filled


def local_architectures() -> list[str]:
    """Return the architecture ids of this machine's accelerators, or of its processor where it has none.

    Drivers and kernel files are asked first; torch, in a child process, only where they tell of no gpu.
    """
    quick = this_machine(ask_torch=False)
    seen = quick if quick.accelerators else this_machine()
    devices = seen.accelerators or seen.devices
    return list(dict.fromkeys(device.arch for device in devices if device.arch))


def installed_packages() -> dict[str, str]:
    """Return the installed distributions, names in lower case with hyphens."""
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found[str(name).lower().replace("_", "-")] = distribution.version
    return found


def read_machine(path: Path) -> Machine:
    """Read a recorded description.

    Raises:
        UsageError: the file cannot be read, or is not a machine's description; the field is named.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the machine description {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the machine description {path} is not JSON: {error}") from error
    return parse_machine(content, where=str(path))


def parse_machine(content: Any, *, where: str) -> Machine:
    """Turn a description's JSON into a Machine; absent fields keep what a bare Linux machine has.

    Raises:
        UsageError: a field has a wrong type or is unknown.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{where} is not a machine description", hint="quantlab doctor --format json prints one")
    content = content.get("machine", content)
    try:
        torch = content.get("torch")
        raw = {
            "system": "Linux", "processor": "x86_64", "python": "unknown", "memory_bytes": None, "shm_bytes": None,
            **content,
            "devices": tuple(Device(**device) for device in content["devices"]),
            "torch": None if torch is None else _torch(torch),
        }  # fmt: skip
        for name in ("cpu_flags", "unreadable", "missing"):
            raw[name] = tuple(raw.get(name, ()))
        return Machine(**raw)
    except (TypeError, KeyError, AttributeError) as error:
        hint = "quantlab doctor --format json prints one"
        raise UsageError(f"{where} is not a machine description: {error}", hint=hint) from error


def _torch(raw: Mapping[str, Any]) -> TorchBuild:
    devices = tuple(Device(**device) for device in raw.get("devices", ()))
    return TorchBuild(**{**raw, "devices": devices, "arch_list": tuple(raw.get("arch_list", ()))})
