"""Tiny models, healthy and damaged, and the evaluator's judgement of them without a worker process.

An original is a seeded random Llama or Qwen3-MoE in bfloat16 with a byte tokenizer. A quantized twin is made by
quantlab's own codecs. Damage to a file is done on its tensors or config; damage in a loader is done to the loaded
model: a layer is made to multiply by another matrix, or a forward pass to answer something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

from quantlab.checkpoint.open import read
from quantlab.evaluation import api
from quantlab.evaluation.engines import ENGINES, transformers
from quantlab.evaluation.job import Job, LoadOptions, SpeedOptions, TextOptions
from quantlab.evaluation.result import Result
from quantlab.evaluation.verdict import Thresholds
from quantlab.formats import FORMATS
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, INT4, INT8
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from quantlab.worker import Outcome

HIDDEN, INNER, VOCABULARY = 128, 256, 272
TEXT = "The quick brown fox jumps over the lazy dog; 1234567890 times it did so, and the dog slept on. " * 4

LETTERS = {letter: place for place, letter in enumerate(sorted(ByteLevel.alphabet()))}
SPACE = "\u0120"
"""What the byte-level alphabet writes for a blank."""

SCHEMES: dict[str, tuple[str, WeightFormat]] = {
    "gptq": ("gptq", WeightFormat(INT4, "group", 32)),
    "gptq asymmetric": ("gptq", WeightFormat(INT4, "group", 32, symmetric=False)),
    "gptq_v2 asymmetric": ("gptq_v2", WeightFormat(INT4, "group", 32, symmetric=False)),
    "awq": ("awq", WeightFormat(INT4, "group", 32, symmetric=False)),
    "pack": ("compressed-tensors/pack-quantized", WeightFormat(INT4, "group", 32)),
    "pack asymmetric": ("compressed-tensors/pack-quantized", WeightFormat(INT4, "group", 32, symmetric=False)),
    "float": ("compressed-tensors/float-quantized", WeightFormat(FP8_E4M3FN, "channel")),
    "int8": ("compressed-tensors/int-quantized", WeightFormat(INT8, "channel")),
    "nvfp4": ("compressed-tensors/nvfp4-pack-quantized", WeightFormat(FP4_E2M1, "group", 16)),
    "mxfp4": ("compressed-tensors/mxfp4-pack-quantized", WeightFormat(FP4_E2M1, "group", 32)),
    "fp8": ("fp8", WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32")),
}
"""Name of a healthy checkpoint to its format and scheme."""


@dataclass(frozen=True)
class Folders:
    """Where checkpoints are made.

    Attributes:
        root: folder of all.
        llama: the dense original.
        experts: the dense original with experts.
    """

    root: Path
    llama: Path
    experts: Path

    def healthy(self, name: str) -> Path:
        """Return a healthy quantized checkpoint by its name in ``SCHEMES``, made once; ``experts NAME`` has experts."""
        folder = self.root / name.replace(" ", "-")
        if not folder.exists():
            scheme = name.removeprefix("experts ")
            original = self.experts if name.startswith("experts") else self.llama
            write(original, folder, *SCHEMES[scheme])
        return folder

    def damaged(self, healthy: Path, name: str) -> Path:
        """Return a copy to be damaged."""
        folder = self.root / f"damaged-{name}"
        shutil.copytree(healthy, folder)
        return folder


def make(root: Path) -> Folders:
    """Write both originals."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    common = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "vocab_size": VOCABULARY,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 128,
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    torch.manual_seed(0)
    folders = Folders(root, root / "llama", root / "experts")
    llama = LlamaForCausalLM(LlamaConfig(**common, num_hidden_layers=2))
    train(llama)
    llama.to(torch.bfloat16).save_pretrained(folders.llama)
    sizes = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    experts = Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **sizes))
    train(experts)
    experts.to(torch.bfloat16).save_pretrained(folders.experts)
    for folder in (folders.llama, folders.experts):
        save_tokenizer(folder)
    return folders


def train(model: Any) -> None:
    """Teach a model the test's text, so that its perplexity is not noise's; columns get sizes of their own first.

    Real models have loud and quiet inputs; without them a wrong order of groups would go unnoticed.
    """
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:
                weight.mul_(torch.exp(0.5 * torch.randn(weight.shape[-1], generator=generator)))
    model.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    ids = torch.tensor([LETTERS[letter] for letter in TEXT.replace(" ", SPACE)])
    for step in range(60):
        starts = [(step * 37 + 11 * row) % (len(ids) - 64) for row in range(8)]
        batch = torch.stack([ids[start : start + 64] for start in starts])
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def save_tokenizer(folder: Path, *, shift: int = 0) -> None:
    """Write a tokenizer of bytes; ``shift`` gives each byte another token, as another model's tokenizer would."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {letter: (place + shift) % len(LETTERS) for letter, place in LETTERS.items()}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<bos>").save_pretrained(folder)


def quantized(original: Path, scheme: WeightFormat, *, act_order: bool = False) -> dict[str, QuantizedTensor]:
    """Return every projection of an original, rounded to a scheme; act order spreads columns over the groups."""
    made = {}
    for name, tensor in load_file(original / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            continue
        if not act_order:
            made[name.removesuffix(".weight")] = quantize(tensor, scheme, name=name)
            continue
        order = torch.randperm(tensor.shape[1], generator=torch.Generator().manual_seed(1))
        back = order.argsort()
        weight = quantize(tensor[:, order].contiguous(), scheme, name=name)
        assert isinstance(weight.codes, torch.Tensor)
        groups = (back // (scheme.group_size or 1)).to(torch.int32)
        made[name.removesuffix(".weight")] = replace(weight, codes=weight.codes[:, back].contiguous(), group_map=groups)
    return made


def write(
    original: Path,
    folder: Path,
    form: str,
    scheme: WeightFormat,
    *,
    act_order: bool = False,
    change: Callable[[str, QuantizedTensor], QuantizedTensor] | None = None,
) -> None:
    """Write an original quantized; ``change`` may alter each layer's codes and scales before they are encoded."""
    codec = FORMATS[form]
    kept = ("lm_head", "model.layers.0.mlp.gate") if original.name == "experts" else ("lm_head",)
    made = quantized(original, scheme, act_order=act_order)
    schemes = {module: weight.format for module, weight in made.items()}
    dense = load_file(original / "model.safetensors")
    tensors = {name: tensor for name, tensor in dense.items() if name.removesuffix(".weight") not in made}
    for module, weight in made.items():
        tensors |= codec.encode(module, weight if change is None else change(module, weight))
    shutil.copytree(original, folder)
    save(folder, tensors)
    config = codec.config(schemes, kept, read(str(original)))
    if act_order:
        config["desc_act"] = True
    edit_config(folder, lambda whole: whole.update(quantization_config=config))


def save(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint's one shard."""
    whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """Change a checkpoint's tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save(folder, tensors)
    return folder


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a checkpoint's config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return folder


def swap(tensors: dict[str, torch.Tensor], one: str, other: str) -> None:
    """Exchange all tensors of two modules."""
    for name in [name for name in tensors if name.startswith(f"{one}.")]:
        twin = other + name.removeprefix(one)
        tensors[name], tensors[twin] = tensors[twin], tensors[name]


def weight_of(folder: Path, module: str) -> QuantizedTensor:
    """Return a module's weight as the file holds it."""
    facts, stored = read(str(folder)), load_file(folder / "model.safetensors")
    codec = FORMATS[facts.format]
    layer = next(layer for layer in codec.layers(facts) if layer.name == module)
    return codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})


def carry(model: Any, module: str, matrix: torch.Tensor) -> None:
    """Make a loaded layer multiply by another matrix: what a faulty loader or kernel comes to."""
    held = model.get_submodule(module)

    def forward(module: Any, inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(inputs, matrix.to(inputs.device, inputs.dtype))

    replace_forward(held, forward)


def replace_forward(module: Any, forward: Callable[..., Any]) -> None:
    """Give a module another forward method; ``forward`` takes the module first, as some loaders look for that."""
    module.forward = MethodType(forward, module)


def judged(
    folder: Path,
    *,
    baseline: Path | None = None,
    fault: Callable[[Any], None] | None = None,
    dtype: str | None = None,
    generate: bool = False,
) -> Result:
    """Evaluate a checkpoint in this process; ``fault`` alters the model as soon as it is loaded.

    An error of the engine becomes a result as it would in a worker.
    """
    text = TextOptions("test", TEXT, "0", tokens=192, window=64)
    job = Job(
        str(folder),
        LoadOptions(device="cpu", dtype=dtype),
        text,
        speed=SpeedOptions(batch=()),
        baseline=None if baseline is None else str(baseline),
        generate=generate,
    )
    partial: dict[str, Any] = {}
    genuine = transformers.load

    def load(checkpoint: str, options: LoadOptions) -> Any:
        loaded = genuine(checkpoint, options)
        if fault is not None:
            fault(loaded.model)
        return loaded

    def report(message: Any) -> None:
        if isinstance(message, Mapping):
            partial.update(message)

    kind, error = "done", None
    with mock.patch.object(transformers, "load", load):
        try:
            transformers.evaluate(job.to_dict(), report)
        except Exception as raised:  # noqa: BLE001 - a worker hands any error over
            kind, error = "raised", raised
    outcome = Outcome(
        kind,  # type: ignore[arg-type]
        {} if error is None else None,
        partial,
        None if error is None else type(error).__name__,
        None if error is None else str(error),
        folder / "log",
        0.0,
        0,
    )
    return api._result(read(str(folder)), ENGINES["transformers"], outcome, reference=None, thresholds=Thresholds())
