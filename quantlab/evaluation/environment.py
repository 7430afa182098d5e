"""Everything that a figure depends on beside the checkpoint: device, stack, library versions, settings."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from quantlab.evaluation.job import LoadOptions
from quantlab.evaluation.result import Environment

LIBRARIES = (
    "transformers", "accelerate", "safetensors", "tokenizers", "compressed-tensors", "gptqmodel", "bitsandbytes",
    "optimum", "torchao", "amd-quark", "auto-round", "llmcompressor", "kernels", "flash-attn", "triton",
    "pytorch-triton-rocm", "vllm", "numpy",
)  # fmt: skip
"""Distributions whose version may change what a checkpoint does or how fast."""

VARIABLES = re.compile(
    r"^(CUDA_|HIP_|ROCR_|HSA_|GPU_DEVICE_ORDINAL|ZE_|ONEAPI_|PYTORCH_|TORCH_|OMP_NUM_THREADS|MKL_NUM_THREADS|VLLM_|"
    r"GPTQMODEL_|BNB_|TRITON_)"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")


def describe(device: torch.device, options: LoadOptions, attention: str | None, dtype: str | None) -> Environment:
    """Return the environment of a measurement on ``device``."""
    gpu, product = identify(device)
    return Environment(
        gpu=gpu,
        product=product,
        gpus=torch.cuda.device_count() if device.type == "cuda" else 0,
        driver=_driver(device),
        cuda=torch.version.cuda,
        rocm=getattr(torch.version, "hip", None),
        torch=torch.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        threads=torch.get_num_threads(),
        versions=versions(),
        variables=variables(os.environ),
        attention=attention,
        use_kernels=options.use_kernels,
        compile=options.compile,
        dtype=dtype,
        device=str(device),
        other_processes_bytes=_others(device),
    )


def identify(device: torch.device) -> tuple[str, str | None]:
    """Return the arch id (``sm_90``, ``gfx942``, ``cpu-x86_64``) and the product's name of a device."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if getattr(torch.version, "hip", None):
            return str(properties.gcnArchName).split(":", maxsplit=1)[0], properties.name
        return f"sm_{properties.major}{properties.minor}", properties.name
    if device.type == "cpu":
        return f"cpu-{platform.machine()}", _cpu_name()
    return device.type, None


def versions() -> dict[str, str]:
    """Return the installed versions of the libraries that matter."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that choose devices, kernels or threads, nothing secret."""
    return {key: environment[key] for key in sorted(environment) if VARIABLES.match(key) and not SECRET.search(key)}


def _cpu_name() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - a pseudo file, read by line
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), None)
    except OSError:
        return platform.processor() or None


def _driver(device: torch.device) -> str | None:
    for path in ("/sys/module/nvidia/version", "/sys/module/amdgpu/version"):
        if device.type == "cuda" and os.path.exists(path):  # noqa: PTH110 - a pseudo file
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                return file.read().strip()
    return None


def _others(device: torch.device) -> int | None:
    """Return bytes of the gpu that are used by somebody else, this process's context included (about 0.5 GB)."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total - free - torch.cuda.memory_reserved(device)))


def settings_of(model: Any) -> tuple[str | None, str | None]:
    """Return the attention implementation and the compute dtype of a loaded model."""
    attention = getattr(model.config, "_attn_implementation", None)
    floats = {p.dtype for p in model.parameters() if p.dtype in (torch.float16, torch.bfloat16, torch.float32)}
    dtype = getattr(model, "dtype", None)
    chosen = dtype if dtype in floats or not floats else next(iter(floats))
    return attention, str(chosen).removeprefix("torch.")
