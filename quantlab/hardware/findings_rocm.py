"""What can be wrong with a ROCm machine: releases against gpus, and variables that hide or rename devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantlab.checkpoint.facts import Finding
from quantlab.hardware.machine import Machine
from quantlab.matrix.data import read_section
from quantlab.matrix.versions import point

HIP_SELECTORS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables that select among the devices that ROCR_VISIBLE_DEVICES left visible."""


def rocm_knows_arch(machine: Machine) -> Iterator[Finding]:
    """A ROCm (of the wheel or the system) older than the first that knows the gpu."""
    data = _rocm_data()
    build = machine.torch.hip if machine.torch is not None else None
    installed = {"torch's ROCm": build, "ROCm": machine.drivers.get("rocm")}
    for device in {device.arch: device for device in machine.accelerators if device.vendor == "amd"}.values():
        first = data["since"].get(device.arch)
        for what, version in installed.items():
            if version and first and point(version)[:3] < point(first):
                yield Finding(
                    "rocm-too-old-for-gpu", "error", f"{device.arch} ({device.name})",
                    f"{what} is {version}, and {device.arch} is known from {first} on",
                    f"install ROCm {first} or newer, and a torch wheel built for it",
                )  # fmt: skip
    yield from _not_in_wheel(machine, data["overrides"])


def _not_in_wheel(machine: Machine, overrides: Mapping[str, str]) -> Iterator[Finding]:
    torch = machine.torch
    if torch is None or not torch.arch_list or not torch.hip:
        return
    built = {arch.partition(":")[0] for arch in torch.arch_list}
    for arch in {device.arch for device in torch.devices if device.arch} - built:
        override = overrides.get(str(arch))
        way = f"HSA_OVERRIDE_GFX_VERSION={override}, at your own risk" if override else "build torch for it"
        yield Finding(
            "wheel-lacks-arch", "error", f"torch {torch.version}",
            f"the wheel carries code for {', '.join(sorted(built))}, not for {arch}", way,
        )  # fmt: skip


def wheel_against_driver(machine: Machine) -> Iterator[Finding]:
    """A ROCm wheel of another major release than the ROCm on the system."""
    build = machine.torch.hip if machine.torch is not None else None
    system = machine.drivers.get("rocm")
    if build and system and point(build)[0] != point(system)[0]:
        yield Finding(
            "rocm-wheel-and-driver", "warning", f"torch {machine.torch.version if machine.torch else ''}",
            f"the wheel is built for ROCm {'.'.join(build.split('.')[:2])} and the system has {system}",
            f"install a torch wheel built for ROCm {point(system)[0]}",
        )  # fmt: skip


def contradicting_variables(machine: Machine) -> Iterator[Finding]:
    """On ROCm, CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES do the same: two values contradict."""
    if machine.backend != "rocm":
        return
    cuda, hip = machine.variables.get("CUDA_VISIBLE_DEVICES"), machine.variables.get("HIP_VISIBLE_DEVICES")
    if cuda is not None and hip is not None and cuda != hip:
        yield Finding(
            "visible-devices-contradict", "error", "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES",
            f"on ROCm both select the same devices, and they differ: {cuda!r} against {hip!r}; vLLM refuses to start",
            "unset CUDA_VISIBLE_DEVICES",
        )  # fmt: skip


def selection_inside_selection(machine: Machine) -> Iterator[Finding]:
    """HIP's indices count the devices that ROCR left visible."""
    rocr = machine.variables.get("ROCR_VISIBLE_DEVICES")
    if machine.backend != "rocm" or not rocr:
        return
    left = len([part for part in rocr.split(",") if part.strip()])
    for name in HIP_SELECTORS:
        value = machine.variables.get(name, "")
        beyond = [part for part in value.split(",") if part.strip().isdigit() and int(part) >= left]
        if beyond:
            yield Finding(
                "hip-index-outside-rocr", "error", f"{name}, ROCR_VISIBLE_DEVICES",
                f"ROCR_VISIBLE_DEVICES={rocr} leaves {left} devices, numbered from 0, and {name}={value} asks for"
                f" {', '.join(beyond)}: 'invalid device ordinal'",
                f"unset ROCR_VISIBLE_DEVICES, or count {name} from 0 inside it",
            )  # fmt: skip
        elif value:
            yield Finding(
                "two-selections", "warning", f"{name}, ROCR_VISIBLE_DEVICES",
                f"{name}={value} counts inside ROCR_VISIBLE_DEVICES={rocr}", "set only one of them",
            )  # fmt: skip


def overridden_arch(machine: Machine) -> Iterator[Finding]:
    """HSA_OVERRIDE_GFX_VERSION holds for all gpus."""
    value = machine.variables.get("HSA_OVERRIDE_GFX_VERSION")
    if value and machine.backend == "rocm":
        yield Finding(
            "arch-overridden", "warning", "HSA_OVERRIDE_GFX_VERSION",
            f"every gpu runs code for gfx{value.replace('.', '')}, whatever it is; kernels that ask are misled",
            "unset HSA_OVERRIDE_GFX_VERSION where the gpu is supported by name",
        )  # fmt: skip


def _rocm_data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_section("environments")["rocm"]
    return data
