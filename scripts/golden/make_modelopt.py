"""Make tests/golden/data/modelopt-VERSION.safetensors with nvidia-modelopt, which the test environment does not hold.

Run from the repository root in an environment with nvidia-modelopt, torch, safetensors and pulp:
``PYTHONPATH=. python scripts/golden/make_modelopt.py``. No gpu is needed: the check for FP4 hardware is answered no.
"""

from __future__ import annotations

import sys
import types
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.awkward import awkward

for name in ("torchprofile", "torchprofile.profile"):  # imported for pruning, not needed here
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchprofile"].profile = sys.modules["torchprofile.profile"]  # type: ignore[attr-defined]
torch.cuda.get_device_capability = lambda *_: (8, 0)

from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor  # noqa: E402

weight = awkward(24, 64)
found = {"source": weight}

codes, scale, factor = NVFP4QTensor.quantize(weight.clone(), 16)
found["nvfp4.weight"] = codes._quantized_data
found["nvfp4.weight_scale"] = scale
found["nvfp4.weight_scale_2"] = factor.reshape(())
found["nvfp4.dense"] = codes.dequantize(torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16})

whole = weight.abs().amax().float() / 448.0
codes, _ = FP8QTensor.quantize(weight.float(), scales=whole)
found["fp8.weight"] = codes._quantized_data
found["fp8.weight_scale"] = whole.reshape(())
found["fp8.dense"] = codes.dequantize(torch.float32, scale=whole)

rows = weight.float().abs().amax(1, keepdim=True) / 448.0
rows[rows == 0] = 1
codes, _ = FP8QTensor.quantize(weight.float(), scales=rows)
found["fp8_pc_pt.weight"] = codes._quantized_data
found["fp8_pc_pt.weight_scale"] = rows.reshape(-1)
found["fp8_pc_pt.dense"] = codes.dequantize(torch.float32, scale=rows)

release = version("nvidia-modelopt")
output = Path("tests/golden/data") / f"modelopt-{release}.safetensors"
output.parent.mkdir(exist_ok=True)
calls = "modelopt.torch.quantization.qtensor: NVFP4QTensor and FP8QTensor, quantize and dequantize"
save_file(
    {name: tensor.contiguous() for name, tensor in found.items()},
    output,
    metadata={"library": f"nvidia-modelopt {release}", "calls": calls, "weight": "tests.awkward.awkward(24, 64)"},
)
print(output)
