"""Through our driver comes what the library itself gives, bit for bit."""

from dataclasses import asdict

import pytest

from quantlab import worker
from quantlab.quantizers.calibration import CalibrationPlan
from quantlab.quantizers.run import _ENVIRONMENT
from quantlab.text import builtin

CASES = [
    pytest.param("bitsandbytes", {"type": "nf4"}, False, "absmax", id="bitsandbytes"),
    pytest.param("torchao", {"type": "int8_weight_only"}, False, "_weight_qdata", id="torchao", marks=pytest.mark.slow),
    pytest.param("gptqmodel", {"group_size": 64}, True, "qweight", id="gptqmodel", marks=pytest.mark.slow),
    pytest.param("llm-compressor", {"group_size": 64}, True, "weight_packed", id="llm-compressor"),
    pytest.param("optimum", {"group_size": 64}, True, "qweight", id="optimum", marks=pytest.mark.slow),
    pytest.param("amd-quark", {"scheme": "fp8"}, True, "weight_scale", id="amd-quark", marks=pytest.mark.slow),
]


def tensors(folder):
    from safetensors import safe_open

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_tensor(name)
                found[name] = (tensor.dtype, tuple(tensor.shape), tensor.contiguous().flatten())
    return found


@pytest.mark.parametrize(("quantizer", "options", "calibrated", "quantized"), CASES)
def test_driver_and_direct_call_write_the_same_tensors(tiny_llama, tmp_path, quantizer, options, calibrated, quantized):
    import torch

    (tmp_path / "scratch").mkdir()
    plan = CalibrationPlan(samples=8, sequence_length=64)
    argument = {
        "quantizer": quantizer,
        "job": {
            "source": str(tiny_llama),
            "output": str(tmp_path / "ours"),
            "options": options,
            "device": "cpu",
            "recipe": None,
            "seed": 0,
        },
        "calibration": asdict(plan) if calibrated else None,
        "text": asdict(builtin("calibration")) if calibrated else None,
        "scratch": str(tmp_path / "scratch"),
        "direct": str(tmp_path / "direct"),
    }
    outcome = worker.run(
        "tests.integration.quantizers.direct:both_ways",
        argument,
        log=tmp_path / "log",
        environment={**_ENVIRONMENT, "TMPDIR": str(tmp_path / "scratch")},
    )
    assert outcome.kind == "done", outcome.last_lines(30)
    ours, direct = tensors(tmp_path / "ours"), tensors(tmp_path / "direct")
    assert ours.keys() == direct.keys()
    assert sum(quantized in name for name in ours) >= 14
    for name, (dtype, shape, values) in ours.items():
        assert (dtype, shape) == direct[name][:2], name
        assert torch.equal(values.view(torch.uint8), direct[name][2].view(torch.uint8)), name
