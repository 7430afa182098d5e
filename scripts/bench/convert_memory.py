#!/usr/bin/env python3
"""Peak memory of a conversion does not grow with the model: measured on a synthetic checkpoint of 8 GB in 32 shards.

usage: convert_memory.py SCRATCH [--to PRESET] [--shards N] [--threads N]

Each shard holds the gate and up projections of a layer with the shapes of Llama-3.1-8B (117 MB each). The
conversion runs in a process of its own; its peak resident memory is compared with two jobs' tensors plus 400 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROWS, COLUMNS = 14336, 4096
ALLOWANCE = 400_000_000

CHILD = """
import json, resource, sys
from quantlab.conversion.api import convert, plan_conversion
source, output, preset, threads = sys.argv[1:5]
plan, _ = plan_conversion(source, output, preset)
result = convert(source, output, preset, threads=int(threads))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak_bytes": peak, "largest_job_bytes": plan.largest_job, "read_bytes": result.bytes["read"],
                  "seconds": result.seconds}))
"""


def synthetic(folder: Path, shards: int) -> None:
    """Write the checkpoint; all layers have the same numbers, which no conversion makes use of."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator) for _ in "ab"]
    where = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{number}.mlp.{kind}_proj.weight" for kind in ("gate", "up")]
        save_file(dict(zip(names, weights, strict=True)), folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": COLUMNS,
              "intermediate_size": ROWS, "num_hidden_layers": shards, "torch_dtype": "bfloat16"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    """Measure and print JSON; exit 1 if the bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--to", nargs="+", default=["fp8"])
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    source = options.scratch / f"synthetic-{options.shards}"
    if not source.is_dir():
        synthetic(source, options.shards)
    results, held = {}, True
    for preset in options.to:
        output = options.scratch / "output"
        shutil.rmtree(output, ignore_errors=True)
        command = [sys.executable, "-c", CHILD, str(source), str(output), preset, str(options.threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        shutil.rmtree(output)
        result = json.loads(done.stdout)
        allowed = 2 * result["largest_job_bytes"] + ALLOWANCE
        results[preset] = {**result, "allowed_bytes": allowed, "ok": result["peak_bytes"] <= allowed}
        held = held and results[preset]["ok"]
    print(json.dumps(results, indent=1))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
