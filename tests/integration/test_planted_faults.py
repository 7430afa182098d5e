"""Damaged checkpoints and loaders: each is found and named; its healthy twin passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quantlab.errors import CheckpointError
from quantlab.evaluation.probe_mistakes import AWQ_ORDER
from quantlab.evaluation.result import Result
from quantlab.tensors.dequantize import dense_codes, dequantize, effective_scales
from quantlab.tensors.quantized import QuantizedTensor
from tests import planted
from tests.planted import HIDDEN, INNER, Folders, judged

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

UP = "model.layers.1.mlp.up_proj"
QUERY = "model.layers.0.self_attn.q_proj"
KEY = "model.layers.0.self_attn.k_proj"
EXPERT = "model.layers.0.mlp.experts"
HEALTHY = [*planted.SCHEMES, "experts float", "experts pack", "experts fp8", "experts mxfp4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return planted.make(tmp_path_factory.mktemp("planted"))


def damage(result: Result, *words: str) -> None:
    """Assert that the verdict says damaged, in these words."""
    assert result.verdict.damaged, result.verdict
    assert not result.verdict.ok
    said = " ".join(result.verdict.failures)
    missing = [word for word in words if word not in said]
    assert not missing, said


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name: str, folders: Folders) -> None:
    original = folders.experts if name.startswith("experts") else folders.llama
    result = judged(folders.healthy(name), baseline=original)
    assert result.verdict.ok, result.verdict
    assert not result.verdict.failures
    assert result.verdict.quality == "good"
    assert result.probe is not None
    assert result.probe.layers == result.probe.of > 0
    assert not result.probe.skipped
    assert result.probe.against_baseline is not None
    assert result.probe.against_baseline.layers >= result.probe.layers


@pytest.mark.parametrize("name", ["llama", "experts"])
def test_healthy_dense(name: str, folders: Folders) -> None:
    result = judged(getattr(folders, name), generate=True)
    assert result.verdict.ok, result.verdict


def test_healthy_act_order(folders: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "act-order"
    planted.write(folders.llama, folder, *planted.SCHEMES["gptq"], act_order=True)
    assert planted.weight_of(folder, UP).group_map is not None
    result = judged(folder, baseline=folders.llama)
    assert result.verdict.ok, result.verdict


def shifted(weight: QuantizedTensor) -> torch.Tensor:
    assert weight.zeros is not None
    return dequantize(replace(weight, zeros=weight.zeros + 1))


def doubled_scale(weight: QuantizedTensor) -> torch.Tensor:
    scales = weight.scales.clone()
    scales[7, 2] *= 2
    return dequantize(replace(weight, scales=scales))


def swapped_nibbles(weight: QuantizedTensor) -> torch.Tensor:
    codes = dense_codes(weight)
    return dequantize(weight.with_codes(codes.view(len(codes), -1, 2).flip(-1).reshape(codes.shape)))


def awq_order(weight: QuantizedTensor) -> torch.Tensor:
    codes = dense_codes(weight)
    rows = codes.view(-1, 8, codes.shape[1])[:, list(AWQ_ORDER)].reshape(codes.shape)
    return dequantize(weight.with_codes(rows))


def inverted(weight: QuantizedTensor) -> torch.Tensor:
    return dequantize(replace(weight, scales=1 / weight.scales.float()))


def bare(weight: QuantizedTensor) -> torch.Tensor:
    return dequantize(replace(weight, scales=torch.ones_like(effective_scales(weight))))


def unrelated(weight: QuantizedTensor) -> torch.Tensor:
    return torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)) * 0.05


def other_rows(weight: QuantizedTensor) -> torch.Tensor:
    return dequantize(weight).roll(3, dims=0)


def other_columns(weight: QuantizedTensor) -> torch.Tensor:
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(6))
    return dequantize(weight)[:, order]


def nothing(weight: QuantizedTensor) -> torch.Tensor:
    return torch.zeros(weight.shape)


def one_infinite(weight: QuantizedTensor) -> torch.Tensor:
    matrix = dequantize(weight)
    matrix[3, :32] = float("inf")
    return matrix


LOADERS: dict[str, tuple[str, Callable[[QuantizedTensor], torch.Tensor], str]] = {
    "zero points off by one": ("gptq asymmetric", shifted, "zero points are off by one"),
    "zero points off by one in AWQ": ("awq", shifted, "zero points are off by one"),
    "one scale doubled": ("pack", doubled_scale, "1 of 1024 scales is wrong, first row 7 group 2: times 2"),
    "swapped nibbles": ("pack", swapped_nibbles, "nibbles of each byte are swapped"),
    "AWQ order ignored": ("awq", awq_order, "AWQ's order"),
    "FNUZ read as OCP": ("float", lambda weight: 2 * dequantize(weight), "times 2: FNUZ"),
    "weight_scale_inv inverted": ("fp8", inverted, "inverted"),
    "scales left out": ("float", bare, "the scales were left out"),
    "random weights": ("gptq", unrelated, "unrelated numbers"),
    "rows in another order": ("int8", other_rows, "permuted rows"),
    "columns in another order": ("nvfp4", other_columns, "permuted columns"),
    "weights never loaded": ("mxfp4", nothing, "all zero"),
    "an infinite scale": ("pack asymmetric", one_infinite, "not finite"),
}
"""What a loader does wrong: checkpoint, the matrix that the layer gets, and the words of the verdict."""


@pytest.mark.parametrize("name", LOADERS)
def test_loader(name: str, folders: Folders) -> None:
    kind, wrong, words = LOADERS[name]
    folder = folders.healthy(kind)
    matrix = wrong(planted.weight_of(folder, UP))
    result = judged(folder, baseline=folders.llama, fault=lambda model: planted.carry(model, UP, matrix))
    damage(result, UP, words)
    assert result.probe is not None
    assert [error.layer for error in result.probe.bad] == [UP]
    assert result.probe.against_baseline is not None
    assert result.probe.against_baseline.ok, "the file is not to blame"


def test_loader_ignores_act_order(folders: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "act-order"
    planted.write(folders.llama, folder, *planted.SCHEMES["gptq"], act_order=True)
    matrix = dequantize(replace(planted.weight_of(folder, UP), group_map=None))
    damage(judged(folder, fault=lambda model: planted.carry(model, UP, matrix)), UP, "act order", "g_idx")


def test_loader_exchanges_layers(folders: Folders) -> None:
    folder = folders.healthy("pack")
    matrix = dequantize(planted.weight_of(folder, KEY))
    result = judged(folder, fault=lambda model: planted.carry(model, QUERY, matrix))
    damage(result, QUERY, f"the weights of {KEY}")


def test_loader_shuffles_experts(folders: Folders) -> None:
    def shuffle(model: Any) -> None:
        with torch.no_grad():
            stack = model.get_submodule(EXPERT).down_proj
            stack.copy_(stack[[1, 0, 2, 3]].clone())

    result = judged(folders.healthy("experts fp8"), fault=shuffle)
    damage(result, f"{EXPERT}.0.down_proj", f"the weights of {EXPERT}.1.down_proj")


def test_loader_changes_a_dense_tensor(folders: Folders) -> None:
    def change(model: Any) -> None:
        with torch.no_grad():
            model.get_parameter("model.norm.weight").mul_(0.5)

    damage(judged(folders.healthy("gptq"), fault=change), "not what the file holds: model.norm.weight")


def test_kernel_raises(folders: Folders) -> None:
    def broken(model: Any) -> None:
        held, genuine = model.get_submodule(UP), model.get_submodule(UP).forward
        calls = []

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            calls.append(inputs.shape)
            if inputs.shape[-2] == 32:
                raise RuntimeError("no kernel image is available")
            return genuine(inputs)

        held.forward = forward

    damage(judged(folders.healthy("gptq"), fault=broken), UP, "no kernel image is available")


def test_kernel_returns_zeros_for_batches(folders: Folders) -> None:
    def broken(model: Any) -> None:
        held = model.get_submodule(UP)
        genuine = held.forward

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            output = genuine(inputs)
            return torch.zeros_like(output) if inputs.ndim == 3 and len(inputs) > 1 else output

        held.forward = forward

    result = judged(folders.healthy("gptq"), fault=broken)
    damage(result, UP, "fails on batches", "other prompts run beside it")


def test_not_finite_on_short_prompts_only(folders: Folders) -> None:
    def broken(model: Any) -> None:
        genuine = model.forward

        def forward(*inputs: Any, **named: Any) -> Any:
            output = genuine(*inputs, **named)
            ids = named.get("input_ids", inputs[0] if inputs else None)
            if ids is not None and 8 <= ids.shape[-1] <= 50:
                output.logits.fill_(float("nan"))
            return output

        model.forward = forward

    result = judged(folders.healthy("pack"), fault=broken)
    damage(result, "not finite on short prompts of 8, 13, 21, 34, 50 tokens")
    assert result.perplexity is not None
    assert result.perplexity.non_finite_positions == 0


def file_fault(
    folders: Folders, kind: str, name: str, change: Callable[[dict[str, torch.Tensor]], None] | None = None
) -> Path:
    """Return a damaged copy of a healthy checkpoint."""
    folder = folders.damaged(folders.healthy(kind), name)
    return folder if change is None else planted.edit(folder, change)


def rewritten(
    folders: Folders, kind: str, name: str, change: Callable[[QuantizedTensor], QuantizedTensor], layer: str = UP
) -> Path:
    """Return a checkpoint one of whose layers was changed before it was encoded."""
    folder = folders.root / f"damaged-{name.replace(' ', '-')}"
    form, scheme = planted.SCHEMES[kind]
    planted.write(
        folders.llama,
        folder,
        form,
        scheme,
        change=lambda module, weight: change(weight) if module == layer else weight,
    )
    return folder


def scaled(row: int, group: int, factor: float) -> Callable[[QuantizedTensor], QuantizedTensor]:
    def change(weight: QuantizedTensor) -> QuantizedTensor:
        scales = weight.scales.clone()
        scales[row, group] *= factor
        return replace(weight, scales=scales)

    return change


def nibbles(weight: QuantizedTensor) -> QuantizedTensor:
    codes = dense_codes(weight)
    return weight.with_codes(codes.view(len(codes), -1, 2).flip(-1).reshape(codes.shape))


def in_awq_order(weight: QuantizedTensor) -> QuantizedTensor:
    codes = dense_codes(weight)
    return weight.with_codes(codes.view(-1, 8, codes.shape[1])[:, list(AWQ_ORDER)].reshape(codes.shape))


def transposed_scales(weight: QuantizedTensor) -> QuantizedTensor:
    return replace(weight, scales=weight.scales.T.reshape(weight.scales.shape).contiguous())


def inverted_scales(weight: QuantizedTensor) -> QuantizedTensor:
    return replace(weight, scales=(1 / weight.scales.float()).to(weight.scales.dtype))


def as_fnuz(weight: QuantizedTensor) -> QuantizedTensor:
    """Scales made for FNUZ codes beside OCP codes of the same bytes: all weights doubled."""
    return replace(weight, scales=weight.scales * 2)


def noise(weight: QuantizedTensor) -> QuantizedTensor:
    codes = dense_codes(weight)
    random = torch.randint(-8, 8, codes.shape, generator=torch.Generator().manual_seed(8), dtype=torch.int32)
    return weight.with_codes(random.to(codes.dtype))


def zero_points_down(weight: QuantizedTensor) -> QuantizedTensor:
    assert weight.zeros is not None
    return replace(weight, zeros=weight.zeros - 1)


FILES: dict[str, tuple[str, Callable[[QuantizedTensor], QuantizedTensor], tuple[str, ...]]] = {
    "one scale zero": ("gptq", scaled(5, 1, 0.0), ("1 of 1024 scales is wrong", "the scale is zero")),
    "one scale NaN": ("pack", scaled(5, 1, float("nan")), ("NaN",)),
    "one scale doubled in the file": ("pack", scaled(5, 1, 2.0), ("1 of 1024 scales is wrong", "times 1.9")),
    "one scale halved in the file": ("pack", scaled(5, 1, 0.5), ("1 of 1024 scales is wrong", "times 0.4")),
    "one channel doubled in the file": ("float", scaled(5, 0, 2.0), ("1 of 256 scales is wrong", "times 2")),
    "scales transposed": ("nvfp4", transposed_scales, ("scales are transposed",)),
    "nibbles swapped in the file": ("mxfp4", nibbles, ("nibbles of each byte are swapped",)),
    "AWQ order in a GPTQ file": ("gptq", in_awq_order, ("AWQ's order",)),
    "weight_scale_inv inverted in the file": ("fp8", inverted_scales, ("inverted",)),
    "FNUZ scales in an OCP file": ("float", as_fnuz, ("times 2: FNUZ",)),
    "codes are noise": ("awq", noise, ("unrelated numbers",)),
    "zero points off by one in the file": ("awq", zero_points_down, ("zero points are off by one",)),
}
"""What is wrong in a file: checkpoint, change of one layer, and the words of the verdict."""


@pytest.mark.parametrize("name", FILES)
def test_file(name: str, folders: Folders) -> None:
    kind, change, words = FILES[name]
    result = judged(rewritten(folders, kind, name, change), baseline=folders.llama)
    damage(result, UP, *words)
    probe = result.probe
    assert probe is not None
    assert probe.against_baseline is not None
    assert [error.layer for error in probe.against_baseline.bad] == [UP]


def test_layers_exchanged_in_the_file(folders: Folders) -> None:
    folder = file_fault(folders, "gptq", "exchanged", lambda tensors: planted.swap(tensors, QUERY, KEY))
    damage(judged(folder, baseline=folders.llama), "2 of 14", KEY, f"the weights of {QUERY}")


def test_experts_shuffled_in_the_file(folders: Folders) -> None:
    def shuffle(tensors: dict[str, torch.Tensor]) -> None:
        for part in ("gate_proj", "up_proj", "down_proj"):
            planted.swap(tensors, f"{EXPERT}.0.{part}", f"{EXPERT}.1.{part}")

    folder = file_fault(folders, "experts pack", "experts", shuffle)
    damage(judged(folder, baseline=folders.experts), "6 of", f"the weights of {EXPERT}.1.")


def test_router_is_noise(folders: Folders) -> None:
    def noisy(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.gate.weight"
        tensors[name] = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(7)).bfloat16() * 0.05

    folder = file_fault(folders, "experts fp8", "router", noisy)
    damage(judged(folder, baseline=folders.experts), "model.layers.0.mlp.gate.weight", "unrelated numbers")


def test_group_map_dropped_from_the_file(folders: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "act-order"
    planted.write(folders.llama, folder, *planted.SCHEMES["gptq"], act_order=True)

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        groups = tensors[f"{UP}.g_idx"]
        tensors[f"{UP}.g_idx"] = (torch.arange(len(groups)) // 32).to(groups.dtype)

    damage(judged(planted.edit(folder, drop), baseline=folders.llama), UP, "the group map (g_idx) is lost")


def test_version_1_zero_points_read_as_version_2(folders: Folders) -> None:
    folder = file_fault(folders, "gptq asymmetric", "version")

    def change(config: dict[str, Any]) -> None:
        config["quantization_config"] |= {"checkpoint_format": "gptq_v2", "format": "gptq_v2"}

    planted.edit_config(folder, change)
    damage(judged(folder, baseline=folders.llama), "14 of", "zero points are off by one")


def test_a_scale_is_missing(folders: Folders) -> None:
    folder = file_fault(folders, "float", "missing", lambda tensors: tensors.pop(f"{UP}.weight_scale"))
    damage(judged(folder), f"{UP}", "weight_scale", "missing")


def test_a_scale_has_another_name(folders: Folders) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{UP}.weight_scales"] = tensors.pop(f"{UP}.weight_scale")

    damage(judged(file_fault(folders, "pack", "renamed", rename)), f"{UP}", "weight_scale")


def test_config_says_4_bits_where_tensors_hold_8(folders: Folders) -> None:
    folder = file_fault(folders, "int8", "bits")

    def change(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["weights"]["num_bits"] = 4

    damage(judged(planted.edit_config(folder, change), baseline=folders.llama), "the config says 4 bits")


def test_group_size_is_wrong(folders: Folders) -> None:
    folder = file_fault(folders, "gptq", "group-size")
    planted.edit_config(folder, lambda config: config["quantization_config"].update(group_size=64))
    damage(judged(folder), "does not load", "scales has shape [8, 128], the config asks for [4, 128]")


def test_ignore_list_is_too_wide(folders: Folders) -> None:
    folder = file_fault(folders, "pack", "ignored")

    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"] = ["lm_head", "re:.*mlp.*"]

    damage(judged(planted.edit_config(folder, change)), "mlp.down_proj.weight", "missing from the file, so random")


def test_secretly_dense(folders: Folders) -> None:
    """The config names a scheme and exempts every layer: all is right but nothing is quantized."""
    folder = folders.damaged(folders.llama, "dense")
    config = {}
    planted.edit_config(folders.healthy("pack"), lambda whole: config.update(whole["quantization_config"]))
    config["ignore"] = ["lm_head", "re:.*proj"]
    planted.edit_config(folder, lambda whole: whole.update(quantization_config=config))
    result = judged(folder, baseline=folders.llama)
    assert not result.verdict.damaged
    assert any("no tensor is quantized" in warning for warning in result.verdict.warnings), result.verdict


def test_truncated_shard(folders: Folders) -> None:
    folder = file_fault(folders, "gptq", "truncated")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match="truncated"):
        judged(folder)


def test_head_untied(folders: Folders) -> None:
    folder = file_fault(folders, "pack", "untied")
    planted.edit_config(folder, lambda config: config.update(tie_word_embeddings=False))
    damage(judged(folder), "lm_head.weight", "missing from the file, so random")


def test_tokenizer_of_another_model(folders: Folders) -> None:
    folder = file_fault(folders, "gptq", "tokenizer")
    planted.save_tokenizer(folder, shift=40)
    damage(judged(folder, baseline=folders.llama), "the tokenizer is another model's", "tokens")


def test_half_precision_overflow(folders: Folders) -> None:
    def loud(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.post_attention_layernorm.weight"] *= 3000

    folder = folders.damaged(folders.llama, "overflow")
    damage(judged(planted.edit(folder, loud), dtype="float16"), "not finite", "overflow")


@pytest.fixture(scope="module")
def bitsandbytes(folders: Folders) -> tuple[Path, Path]:
    """Save an NF4 model before any forward pass, and again after one without gradients."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    before, after = folders.root / "nf4-before", folders.root / "nf4-after"
    model = AutoModelForCausalLM.from_pretrained(folders.llama, quantization_config=settings, dtype=torch.bfloat16)
    model.save_pretrained(before)
    with torch.inference_mode():
        model(torch.arange(8)[None])
    model.save_pretrained(after)
    for folder in (before, after):
        planted.save_tokenizer(folder)
    return before, after


def test_bitsandbytes_saved_before_a_forward_pass(bitsandbytes: tuple[Path, Path], folders: Folders) -> None:
    result = judged(bitsandbytes[0], baseline=folders.llama)
    assert result.verdict.ok, result.verdict
    assert result.probe is not None
    assert result.probe.layers == 14


def test_bitsandbytes_saved_after_a_forward_pass(bitsandbytes: tuple[Path, Path], folders: Folders) -> None:
    """CPUs with AVX512-BF16 spoil it; on others the file must be as good as the other."""
    _, after = bitsandbytes
    stored = load_file(after / "model.safetensors")
    spoilt = [name for name, tensor in stored.items() if name.endswith("absmax") and tensor.ndim != 1]
    result = judged(after, baseline=folders.llama)
    if spoilt:
        damage(result, "absmax")
    else:
        assert result.verdict.ok, result.verdict


def test_absmax_transposed(bitsandbytes: tuple[Path, Path], folders: Folders) -> None:
    """What such a save leaves, made by hand."""
    folder = folders.damaged(bitsandbytes[0], "absmax")

    def transpose(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("absmax")]:
            columns = INNER if "down_proj" in name else HIDDEN
            tensors[name] = tensors[name].view(-1, columns // 64).T.contiguous()

    damage(judged(planted.edit(folder, transpose), baseline=folders.llama), "absmax")


def test_compressed_tensors_saved_after_a_forward_pass(folders: Folders) -> None:
    """It became dense at the forward pass: a warning, not damage."""
    from transformers import AutoModelForCausalLM

    folder = folders.root / "saved-after"
    model = AutoModelForCausalLM.from_pretrained(folders.healthy("pack"))
    with torch.inference_mode():
        model(torch.arange(8)[None])
    model.save_pretrained(folder)
    planted.save_tokenizer(folder)
    result = judged(folder, baseline=folders.llama)
    assert not result.verdict.damaged, result.verdict
    assert any("secretly dense" in warning for warning in result.verdict.warnings), result.verdict
