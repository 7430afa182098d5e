"""What can be wrong with a machine: one function a rule, each gives findings or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.hardware.findings_rocm import (
    HIP_SELECTORS,
    contradicting_variables,
    overridden_arch,
    rocm_knows_arch,
    selection_inside_selection,
    wheel_against_driver,
)
from quantlab.hardware.machine import OWN_BACKEND, Machine
from quantlab.matrix.data import read_section
from quantlab.matrix.versions import parse_range, point, read_version

Rule = Callable[[Machine], Iterator[Finding]]

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - named in a message, not written to


def find_problems(machine: Machine) -> tuple[Finding, ...]:
    """Return everything found, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    found = [finding for rule in RULES for finding in rule(machine)]
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def device_files(machine: Machine) -> Iterator[Finding]:
    """/dev/kfd and /dev/dri that this user may not open."""
    for file in machine.unreadable:
        group = "render" if "dri" in file else "video"
        yield Finding(
            "device-access", "error", file, f"{file} exists and this user may not open it",
            'sudo usermod -aG render,video "$USER", then log in again; in a container add '
            f"--device={file} --group-add {group}",
        )  # fmt: skip


def missing_files(machine: Machine) -> Iterator[Finding]:
    """Device files that a container was not given."""
    for file in machine.missing:
        yield Finding(
            "device-missing", "error", file, f"the kernel tells of an AMD gpu and {file} is not here",
            "start the container with --device=/dev/kfd --device=/dev/dri --group-add video",
        )  # fmt: skip


def index_beyond_devices(machine: Machine) -> Iterator[Finding]:
    """A visible-device variable that names a device which is not there."""
    names: tuple[str, ...] = {"rocm": ("ROCR_VISIBLE_DEVICES",), "cuda": ("CUDA_VISIBLE_DEVICES",)}.get(
        machine.backend, ()
    )
    if machine.backend == "rocm" and not machine.variables.get("ROCR_VISIBLE_DEVICES"):
        names = HIP_SELECTORS
    count = sum(device.told_by != "torch" for device in machine.accelerators)
    for name in names:
        chosen = [part.strip() for part in machine.variables.get(name, "").split(",")]
        beyond = [part for part in chosen if part.isdigit() and int(part) >= count]
        if beyond and count:
            yield Finding(
                "index-beyond-devices", "error", name,
                f"{name}={machine.variables[name]} asks for {', '.join(beyond)} and there are {count} devices, "
                "numbered from 0: what follows is not seen either",
                f"export {name}={','.join(map(str, range(count)))}",
            )  # fmt: skip


def small_shared_memory(machine: Machine) -> Iterator[Finding]:
    """A /dev/shm of a container's default size, too small for several processes."""
    wanted = int(read_section("environments")["rocm"]["shared_memory_bytes"])
    if machine.shm_bytes is not None and machine.shm_bytes < wanted and machine.accelerators:
        yield Finding(
            "small-shm", "warning", SHARED_MEMORY,
            f"{SHARED_MEMORY} holds {machine.shm_bytes / 2**20:.0f} MiB; tensor parallelism and data loaders want "
            f"{wanted / 2**30:.0f} GiB",
            "run the container with --ipc=host or --shm-size 8g",
        )  # fmt: skip


def wheel_against_gpu(machine: Machine) -> Iterator[Finding]:
    """A torch built for another vendor than the gpu's, or for none."""
    torch, vendors = machine.torch, machine.vendors
    if torch is None or not vendors:
        return
    if torch.kind not in {OWN_BACKEND.get(vendor) for vendor in vendors}:
        names = ", ".join(sorted({device.name for device in machine.accelerators}))
        yield Finding(
            "wheel-for-another-device", "error", f"torch {torch.version}",
            f"torch is a {torch.kind} build and the machine has {names}",
            "uv pip install --reinstall --torch-backend=auto torch",
        )  # fmt: skip


def cuda_wheel_against_driver(machine: Machine) -> Iterator[Finding]:
    """A CUDA wheel that asks for a newer NVIDIA driver."""
    built = machine.torch.cuda if machine.torch is not None else None
    driver = machine.drivers.get("nvidia")
    oldest = read_section("environments")["cuda"]["minimum_driver"].get((built or "").partition(".")[0])
    if machine.torch is None or not driver or not oldest or point(driver) >= point(oldest):
        return
    yield Finding(
        "cuda-wheel-and-driver", "error", f"torch {machine.torch.version}",
        f"the wheel is built for CUDA {built}, which asks for driver {oldest} or newer, and the driver is {driver}",
        "uv pip install --reinstall --torch-backend=auto torch",
    )  # fmt: skip


def torch_sees_nothing(machine: Machine) -> Iterator[Finding]:
    """The right build, and it sees no device."""
    torch = machine.torch
    if torch is None or torch.kind != machine.backend or torch.available or not machine.accelerators:
        return
    why = torch.error or "the driver may not fit, or a variable hides the devices"
    yield Finding(
        "torch-sees-no-device", "error", f"torch {torch.version}",
        f"drivers tell of {len(machine.accelerators)} devices and torch sees none: {why}",
        "look at the findings on device files and visible-device variables, then at the driver's version",
    )  # fmt: skip


def hidden_devices(machine: Machine) -> Iterator[Finding]:
    """An empty or negative visible-device variable hides every gpu."""
    readers = {"rocm": (*HIP_SELECTORS, "ROCR_VISIBLE_DEVICES"), "cuda": ("CUDA_VISIBLE_DEVICES",),
               "xpu": ("ZE_AFFINITY_MASK",)}.get(machine.backend, ())  # fmt: skip
    for name in readers:
        value = machine.variables.get(name)
        if value is not None and value.strip() in {"", "-1"}:
            yield Finding(
                "all-devices-hidden", "error", name, f"{name}={value!r} hides every gpu", f"unset {name}",
            )  # fmt: skip


def device_order(machine: Machine) -> Iterator[Finding]:
    """Different NVIDIA gpus are numbered fastest first unless told otherwise."""
    archs = {device.name for device in machine.accelerators if device.vendor == "nvidia"}
    if len(archs) > 1 and machine.variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield Finding(
            "device-order", "warning", "CUDA_DEVICE_ORDER",
            f"{', '.join(sorted(archs))}: CUDA numbers the fastest first, nvidia-smi by bus: one number, two gpus",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )  # fmt: skip


def mixed_gpus(machine: Machine) -> Iterator[Finding]:
    """Gpus of several architectures: each has its own answers."""
    archs = sorted({str(device.arch) for device in machine.accelerators})
    if len(archs) > 1:
        yield Finding(
            "mixed-gpus", "warning", "devices",
            f"{', '.join(archs)} in one machine: a kernel for one may not exist for another",
            f"quantlab check CHECKPOINT --gpu {archs[0]}, and for each of the others",
        )  # fmt: skip


def several_devices_a_card(machine: Machine) -> Iterator[Finding]:
    """A card that shows itself as two devices, each with half of the memory."""
    from quantlab.errors import UnknownNameError
    from quantlab.hardware.catalogue import gpu

    for name in dict.fromkeys(device.name for device in machine.accelerators):
        try:
            product = gpu(name)
        except UnknownNameError:
            continue
        if product.devices_per_card > 1:
            memory = (product.memory_bytes or 0) / 2**30
            yield Finding(
                "several-devices-a-card", "info", name,
                f"one card is {product.devices_per_card} devices of {memory:.0f} GB: a larger model needs both",
                f"--tensor-parallel {product.devices_per_card}, or device_map",
            )  # fmt: skip


def conflicting_packages(machine: Machine) -> Iterator[Finding]:
    """Installed versions that the data says do not work together."""
    for conflict in read_section("environments")["conflicts"]["conflicts"]:
        clash = {name: machine.packages.get(name) for name in conflict["packages"]}
        absent = conflict.get("absent") or ()
        if any(name in machine.packages for name in absent) or not all(
            _lies_in(version, conflict["packages"][name]) for name, version in clash.items()
        ):
            continue
        yield Finding(
            "conflicting-versions", "warning", ", ".join(f"{name} {version}" for name, version in clash.items()),
            conflict["reason"], conflict["fix"],
        )  # fmt: skip


def _lies_in(text: str | None, accepted: str) -> bool:
    version = read_version(text) if text else None
    return version is not None and version in parse_range(accepted)


RULES: tuple[Rule, ...] = (
    device_files,
    missing_files,
    wheel_against_gpu,
    cuda_wheel_against_driver,
    torch_sees_nothing,
    hidden_devices,
    index_beyond_devices,
    contradicting_variables,
    selection_inside_selection,
    rocm_knows_arch,
    wheel_against_driver,
    conflicting_packages,
    small_shared_memory,
    device_order,
    mixed_gpus,
    overridden_arch,
    several_devices_a_card,
)
