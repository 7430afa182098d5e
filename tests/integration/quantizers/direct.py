"""Each library twice in one worker: through our driver, and called as its own documents do."""

from __future__ import annotations

from pathlib import Path

from quantlab.quantizers.calibration import read_ids
from quantlab.quantizers.child import quantize


def both_ways(argument, report):
    """Run the driver, then the direct call on the same samples; return the driver's answer."""
    answer = quantize(argument, report)
    samples = Path(argument["scratch"]) / "samples.json"
    ids = read_ids(samples) if samples.exists() else None
    DIRECT[argument["quantizer"]](Path(argument["job"]["source"]), Path(argument["direct"]), ids)
    return answer


def dense(source, **arguments):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype="auto", device_map="cpu", **arguments)


def gptqmodel(source, output, ids):
    from gptqmodel import GPTQModel, QuantizeConfig

    model = GPTQModel.load(str(source), QuantizeConfig(bits=4, group_size=64), device="cpu")
    model.quantize([{"input_ids": i, "attention_mask": [1] * len(i)} for i in ids], batch_size=1)
    model.save(str(output))


def bitsandbytes(source, output, ids):
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    dense(source, quantization_config=config).save_pretrained(output)


def torchao(source, output, ids):
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    dense(source, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())).save_pretrained(output)


def llm_compressor(source, output, ids):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier

    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=64)
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]})
    model = dense(source)
    oneshot(
        model=model,
        dataset=data,
        recipe=GPTQModifier(config_groups=groups, ignore=["lm_head"]),
        max_seq_length=len(ids[0]),
        num_calibration_samples=len(ids),
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(output, save_compressed=True)


def optimum(source, output, ids):
    import torch
    from transformers import AutoTokenizer, GPTQConfig

    data = [{"input_ids": torch.tensor([i]), "attention_mask": torch.ones(1, len(i), dtype=torch.long)} for i in ids]
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = GPTQConfig(bits=4, group_size=64, dataset=["x"], tokenizer=tokenizer)
    config.dataset = data
    model = dense(source, quantization_config=config)
    model.config.quantization_config.dataset = None
    model.config.quantization_config.tokenizer = None
    model.save_pretrained(output)


def quark(source, output, ids):
    import torch
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors

    quantizer = ModelQuantizer(LLMTemplate.get("llama").get_config(scheme="fp8"))
    model = quantizer.freeze(quantizer.quantize_model(dense(source), [torch.tensor([i]) for i in ids]))
    output.mkdir()
    export_safetensors(model=model, output_dir=str(output))


DIRECT = {
    "gptqmodel": gptqmodel,
    "bitsandbytes": bitsandbytes,
    "torchao": torchao,
    "llm-compressor": llm_compressor,
    "optimum": optimum,
    "amd-quark": quark,
}
