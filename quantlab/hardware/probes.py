"""How a machine is asked: vendor tools, kernel files, and torch in a child process.

Nothing here raises: what cannot be asked is absent. torch is never imported in this process, and on a ROCm
build its capability numbers are not used at all: gfx1100 and Jetson Thor are both (11, 0).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantlab.hardware.machine import Device, TorchBuild

SECONDS = 20
"""How long a vendor's tool may take; a hanging driver must not hang the doctor."""

TORCH_SECONDS = 120

KFD = Path("/sys/class/kfd/kfd/topology/nodes")

ASK_TORCH = """
import json, torch
told = {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}
told["xpu"] = bool(getattr(torch, "xpu", None) and torch.xpu.is_available())
told["mps"] = bool(torch.backends.mps.is_available())
told["available"] = bool(torch.cuda.is_available() or told["xpu"] or told["mps"])
devices = []
if torch.cuda.is_available():
    told["arch_list"] = list(torch.cuda.get_arch_list())
    for index in range(torch.cuda.device_count()):
        seen = torch.cuda.get_device_properties(index)
        if torch.version.hip:
            arch, _, features = seen.gcnArchName.partition(":")
            devices.append({"vendor": "amd", "arch": arch, "features": features or None})
        else:
            devices.append({"vendor": "nvidia", "arch": f"sm_{seen.major}{seen.minor}"})
        devices[-1].update(index=index, name=seen.name, memory_bytes=seen.total_memory, told_by="torch")
elif told["xpu"]:
    for index in range(torch.xpu.device_count()):
        seen = torch.xpu.get_device_properties(index)
        devices.append({"vendor": "intel", "arch": None, "index": index, "name": seen.name,
                        "memory_bytes": seen.total_memory, "told_by": "torch"})
told["devices"] = devices
print("TOLD " + json.dumps(told))
"""


def ask_torch(version: str) -> TorchBuild:
    """Ask torch in a child process what it is and sees."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
        )
        told = re.search(r"^TOLD (.*)$", done.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return TorchBuild(version, error=str(error))
    if told is None:
        last = done.stderr.strip().splitlines()
        return TorchBuild(version, error=last[-1] if last else f"exit code {done.returncode}")
    raw: dict[str, Any] = json.loads(told.group(1))
    devices = tuple(
        Device(**{**device, "arch": device["arch"] or _arch_of(device["name"])}) for device in raw["devices"]
    )
    return TorchBuild(**{**raw, "devices": devices, "arch_list": tuple(raw.get("arch_list", ()))})


def accelerators() -> list[Device]:
    """Return the accelerators that drivers and kernel files tell of, without torch."""
    by_tool = _amd_smi() or _rocm_tools()
    found = [*_nvidia(), *(_named(_kfd(), by_tool) or by_tool)]
    if not found and sys.platform == "darwin":
        found = _apple()
    return found


def _say(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _nvidia() -> list[Device]:
    told = _say("nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap", "--format=csv,noheader,nounits")
    found = []
    for line in (told or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():
            index, name, memory, capability = cells
            size = int(float(memory) * 2**20) if memory.replace(".", "").isdigit() else None
            found.append(
                Device(int(index), "nvidia", f"sm_{capability.replace('.', '')}", name, size, told_by="nvidia-smi")
            )
    return found


def gfx_name(target_version: int) -> str:
    """Return the architecture of a kfd node: 90402 is gfx942, 90010 gfx90a, 110501 gfx1151."""
    major, minor, step = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{step:x}"


def _kfd() -> list[Device]:
    found: list[Device] = []
    nodes = sorted(KFD.glob("*/properties"), key=lambda path: int(path.parent.name)) if KFD.is_dir() else []
    for file in nodes:
        properties = _properties(file)
        target = properties.get("gfx_target_version", 0)
        if target == 0:
            continue  # a processor's node
        arch = gfx_name(target)
        banks = file.parent.glob("mem_banks/*/properties")
        memory = sum(_properties(bank).get("size_in_bytes", 0) for bank in banks)
        found.append(Device(len(found), "amd", arch, _product_name(file.parent) or arch, memory or None, told_by="kfd"))
    return found


def _properties(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _product_name(node: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (node / "name").read_text(encoding="utf-8").strip() or None
    return None


def _named(told: list[Device], by_tool: list[Device]) -> list[Device]:
    """Return the kernel's devices with the tool's product names, where both count the same devices."""
    if [device.arch for device in told] != [device.arch for device in by_tool]:
        return told
    return [
        replace(device, name=other.name, told_by="kfd, amd-smi") for device, other in zip(told, by_tool, strict=True)
    ]


def _amd_smi() -> list[Device]:
    return amd_smi_devices(_say("amd-smi", "static", "--asic", "--vram", "--json") or "")


def amd_smi_devices(text: str) -> list[Device]:
    """Return the devices of ``amd-smi static --asic --vram --json``; none where it is of another form.

    ROCm 7 wraps the list into ``gpu_data``, ROCm 6 prints the list (ROCm/amdsmi: amdsmi_cli/amdsmi_commands.py).
    """
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        content = json.loads(text)
        found: list[Device] = []
        for card in content["gpu_data"] if isinstance(content, dict) else content:
            arch = str(card["asic"].get("target_graphics_version") or "").partition(":")[0].lower()
            size = card.get("vram", {}).get("size", {}).get("value")
            memory = int(size) * 2**20 if str(size).isdigit() else None
            name = str(card["asic"]["market_name"])
            found.append(Device(int(card["gpu"]), "amd", arch or _arch_of(name), name, memory, told_by="amd-smi"))
        return found
    return []


def _rocm_tools() -> list[Device]:
    told = _say("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    with contextlib.suppress(ValueError, TypeError):
        cards: dict[str, dict[str, str]] = json.loads(told or "{}")
        found: list[Device] = []
        for name, card in sorted(cards.items()):
            if name.startswith("card"):
                arch = card.get("GFX Version")
                memory = card.get("VRAM Total Memory (B)", "")
                title = card.get("Card Series") or card.get("Card series") or arch or name
                size = int(memory) if memory.isdigit() else None
                found.append(Device(len(found), "amd", arch or _arch_of(title), title, size, told_by="rocm-smi"))
        return found
    return []


def _apple() -> list[Device]:
    name = (_say("sysctl", "-n", "machdep.cpu.brand_string") or "").strip()
    return (
        [Device(0, "apple", _arch_of(name), name, host_memory(), told_by="sysctl")] if name.startswith("Apple") else []
    )


def _arch_of(name: str) -> str | None:
    from quantlab.errors import UnknownNameError
    from quantlab.hardware.catalogue import gpu

    try:
        return gpu(name).arch
    except UnknownNameError:
        return None


def processor() -> Device:
    """Return the processor as a device."""
    machine = os.uname().machine if hasattr(os, "uname") else "x86_64"
    arch = {"arm64": "cpu-arm64-apple", "amd64": "cpu-x86_64"}.get(machine, f"cpu-{machine}")
    name = re.search(r"^model name\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return Device(0, "cpu", arch, name.group(1).strip() if name else machine, host_memory(), told_by="cpuinfo")


def cpu_flags() -> tuple[str, ...]:
    """Return the processor's instruction sets that number formats care about."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    wanted = re.compile(r"^(avx2|avx512.*|amx.*|avx_vnni.*|bf16|i8mm|asimddp|sve2?|fphp)$")
    return tuple(sorted(flag for flag in (flags.group(1).split() if flags else ()) if wanted.match(flag)))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def host_memory() -> int | None:
    """Return the host's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def shared_memory() -> int | None:
    """Return the size of /dev/shm in bytes."""
    return shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None  # noqa: S108


def drivers() -> dict[str, str]:
    """Return driver and ROCm versions."""
    nvidia = (_say("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "").split()
    found = {
        "nvidia": nvidia[0] if nvidia else "",
        "amdgpu": _text("/sys/module/amdgpu/version").strip(),
        "rocm": _text("/opt/rocm/.info/version").strip(),
    }
    return {name: version for name, version in found.items() if version}


def missing_device_files() -> tuple[str, ...]:
    """Return device files that the kernel's topology promises and that are not there, as in a bare container."""
    if not any(_properties(file).get("gfx_target_version") for file in KFD.glob("*/properties")):
        return ()
    return tuple(path for path in ("/dev/kfd", "/dev/dri") if not Path(path).exists())


def unreadable_device_files() -> tuple[str, ...]:
    """Return device files of AMD and Intel gpus that exist and that this user may not open."""
    files = [Path("/dev/kfd"), *sorted(Path("/dev/dri").glob("renderD*"))]
    return tuple(str(file) for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK))
