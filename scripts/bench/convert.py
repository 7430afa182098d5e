#!/usr/bin/env python3
"""Conversion speed and memory side by side, in one run, as JSON.

usage: convert.py DENSE_CHECKPOINT [--scratch FOLDER] [--repeats N] [--threads N] [--only NAME ...]

Each measurement is a process of its own, so that memory and imports do not mix; seconds are those of the call in the
process, without imports. Measured are:

- ``limit``: torch's own cast of the linear weights to float8 plus ``cp`` of the files: what FP8 cannot be below;
- quantizing natively, against llm-compressor's model-free path on the same checkpoint;
- repacks, against compressed-tensors' own AutoAWQ converter and against ``cp`` of the same files.

Of quantlab the time of the conversion alone (``--verify none``) is compared, as the peers prove nothing; the proof
and the hashing are printed apart. ``seconds`` is the median of the repeats, ``all`` has every one.
"""
# ruff: noqa: ARG001 - every measurement is called the same way

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PEER_SCHEMES = {"fp8": "FP8_DYNAMIC", "w8a8": "W8A8", "w4a16": "W4A16", "nvfp4a16": "NVFP4A16"}
"""Preset to the name of the same scheme in compressed-tensors."""

REPACKS = {"gptq": ("w4a16", "gptq"), "pack-quantized": ("gptq", "compressed-tensors"), "awq": ("w4a16", "awq")}
"""Name to (source, --to-format)."""


def one(kind: str, source: Path, output: Path, option: str, threads: int) -> dict[str, Any]:
    """Do one measurement in this process."""
    import torch

    torch.set_num_threads(threads)
    work = {"quantlab": quantlab_convert, "prove": quantlab_convert, "repack": quantlab_convert,
            "model-free": model_free, "autoawq": autoawq, "cast": cast, "copy": copy}[kind]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = work(source, output, option, threads, verify=kind == "prove", repack=kind == "repack")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**result, "peak_bytes": after * 1024, "before_bytes": before * 1024}


def quantlab_convert(
    source: Path, output: Path, option: str, threads: int, *, verify: bool, repack: bool
) -> dict[str, Any]:
    """Convert with quantlab."""
    from quantlab.conversion.api import convert

    target = {"to_format": option} if repack else {"to": option}
    started = time.perf_counter()
    result = convert(source, output, **target, verify="decode" if verify else "none", threads=threads)
    took = time.perf_counter() - started
    kept = took - result.seconds["flush"] - result.seconds["hash"] - result.seconds.get("verify", 0.0)
    return {"seconds": kept, "whole": took, "phases": result.seconds}


def model_free(source: Path, output: Path, option: str, threads: int, **_: bool) -> dict[str, Any]:
    """Quantize with llm-compressor's model-free path."""
    from llmcompressor import model_free_ptq

    started = time.perf_counter()
    model_free_ptq(source, output, scheme=option, ignore=["lm_head", "re:.*embed_tokens"], max_workers=threads,
                   device="cpu")  # fmt: skip
    return {"seconds": time.perf_counter() - started}


def autoawq(source: Path, output: Path, option: str, threads: int, **_: bool) -> dict[str, Any]:
    """Convert an AWQ checkpoint with compressed-tensors' own converter."""
    from compressed_tensors.entrypoints.convert import convert_checkpoint
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    started = time.perf_counter()
    config = json.loads((source / "config.json").read_text())["quantization_config"]
    converter = AutoAWQConverter.from_autoawq_config(config)
    convert_checkpoint(source, output, converter, max_workers=threads, device="cpu")
    return {"seconds": time.perf_counter() - started}


def cast(source: Path, output: Path, option: str, threads: int, **_: bool) -> dict[str, Any]:
    """Cast every linear weight to float8, already in memory."""
    import torch
    from safetensors.torch import load_file

    files = [load_file(file) for file in sorted(source.glob("*.safetensors"))]
    weights = [t for part in files for n, t in part.items() if t.ndim == 2 and "embed" not in n and "lm_head" not in n]
    for weight in weights:
        weight.sum()  # the map is read before the clock starts
    started = time.perf_counter()
    for weight in weights:
        weight.to(torch.float8_e4m3fn)
    return {"seconds": time.perf_counter() - started}


def copy(source: Path, output: Path, option: str, threads: int, **_: bool) -> dict[str, Any]:
    """``cp`` of the files."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(output)], check=True)
    return {"seconds": time.perf_counter() - started}


class Bench:
    """Runs measurements in child processes."""

    def __init__(self, scratch: Path, repeats: int, threads: int) -> None:
        self.scratch = scratch
        self.repeats = repeats
        self.threads = threads

    def measure(self, kind: str, source: Path, option: str = "", keep: str | None = None) -> dict[str, Any]:
        """Return the median of the repeats; ``keep`` names the folder under which the last output stays."""
        runs = []
        for number in range(self.repeats):
            output = self.scratch / (keep or "output")
            shutil.rmtree(output, ignore_errors=True)
            os.sync()
            runs.append(self._child(kind, source, output, option))
            if keep is None or number + 1 < self.repeats:
                shutil.rmtree(output, ignore_errors=True)
        seconds = [run["seconds"] for run in runs]
        print(f"{kind} {option}: {' '.join(f'{value:.2f}' for value in seconds)} s", file=sys.stderr)
        return {
            "seconds": statistics.median(seconds),
            "all": seconds,
            "peak_bytes": max(run["peak_bytes"] for run in runs),
            **{key: runs[-1][key] for key in ("phases",) if key in runs[-1]},
        }

    def _child(self, kind: str, source: Path, output: Path, option: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", kind, str(source), str(output), option, str(self.threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        log = self.scratch / "child.log"
        with log.open("ab") as errors:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{kind} {option} failed; see {log}")
        return dict(json.loads(done.stdout.decode().splitlines()[-1]))


def whole(dense: Path, bench: Bench, only: set[str] | None) -> dict[str, Any]:
    """Return every measurement, with the ratios that matter."""
    result: dict[str, Any] = {"checkpoint": dense.name, "threads": bench.threads, "cores": os.cpu_count()}
    result["copy"] = bench.measure("copy", dense)
    result["cast"] = bench.measure("cast", dense)
    limit = result["copy"]["seconds"] + result["cast"]["seconds"]
    result["limit_seconds"] = limit
    for preset, scheme in PEER_SCHEMES.items():
        if only and preset not in only:
            continue
        ours = bench.measure("quantlab", dense, preset, keep=f"bench-{preset}")
        peer = bench.measure("model-free", dense, scheme)
        result[preset] = {
            "quantlab": ours,
            "model_free": peer,
            "times_faster": peer["seconds"] / ours["seconds"],
            "over_limit": ours["seconds"] / limit,
            "memory_against_peer": ours["peak_bytes"] / peer["peak_bytes"],
        }
    if only is None or "prove" in only:
        result["proof"] = {"fp8": bench.measure("prove", dense, "fp8")}
    result |= repacks(bench, only)
    return result


def repacks(bench: Bench, only: set[str] | None) -> dict[str, Any]:
    """Return the repacks, each against ``cp`` of its source."""
    result: dict[str, Any] = {}
    for name, (source, target) in REPACKS.items():
        folder = bench.scratch / f"bench-{source}"
        if (only and name not in only) or not folder.is_dir():
            continue
        plain = bench.measure("copy", folder)
        ours = bench.measure("repack", folder, target, keep=f"bench-{name}")
        result[f"repack {source} to {name}"] = {
            "quantlab": ours, "copy": plain, "part_of_copy_speed": plain["seconds"] / ours["seconds"],
        }  # fmt: skip
    awq = bench.scratch / "bench-awq"
    if awq.is_dir():
        ours, peer = bench.measure("repack", awq, "compressed-tensors"), bench.measure("autoawq", awq)
        result["repack awq to pack-quantized"] = {
            "quantlab": ours, "compressed_tensors": peer, "times_faster": peer["seconds"] / ours["seconds"],
            "part_of_copy_speed": bench.measure("copy", awq)["seconds"] / ours["seconds"],
        }  # fmt: skip
    return result


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        kind, source, output, option, threads = sys.argv[2:7]
        stdout = os.dup(1)
        os.dup2(2, 1)  # what libraries print must not mix with the result
        result = one(kind, Path(source), Path(output), option, int(threads))
        os.write(stdout, json.dumps(result).encode() + b"\n")
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path("bench-scratch"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", help="presets and repacks to measure")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.scratch, options.repeats, options.threads)
    print(json.dumps(whole(options.checkpoint, bench, set(options.only) if options.only else None), indent=1))


if __name__ == "__main__":
    main()
