"""Readers of strangers' files: whatever the bytes, an answer or one CheckpointError, never anything else."""

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantlab.checkpoint.inspection import inspect
from quantlab.checkpoint.recognition import COMPANIONS, recognise
from quantlab.checkpoint.summary import summary
from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section
from tests.unit.made_checkpoints import fp8_blocks, gptq, safetensors_bytes, write

FAST = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

KEY_WORDS = """
    quantization_config quantization text_config quant_method config_groups weights targets input_activations
    format ignore bits group_size sym zero_point desc_act dynamic quant_algo quantized_layers kv_cache_scheme
    global_quant_config layer_quant_config weight dtype qscheme quant_type default _type _data
    weight_block_size activation_scheme fmt expert_dtype load_in_4bit modules_to_not_convert extra_config
    quant_config weight_quant_params config_for_layers vector_lens num_centroids hidden_size num_experts
    architectures model_type auto_map mode num_bits strategy block_structure bits_and_bytes data_type act_bits
    has_zero_point quantize tie_word_embeddings vision_config compression_config exclude export wbits nbits
"""
KEYS = sorted(KEY_WORDS.split())
METHODS = sorted({method for form in read_section("formats").values() for method in form["quant_methods"]})
WORDS = [*METHODS, "pack-quantized", "int", "float", "group", "fp8_e4m3", "mx", "NVFP4", "MIXED_PRECISION", "re:(a+)+$",
         "re:[", "*", "lm_head", "Int4WeightOnlyConfig", "ModuleFqnToConfig", "W8A8", "e4m3", "128", ""]  # fmt: skip

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 130),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=6))
documents = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=30,
)
objects = st.dictionaries(keys, documents, max_size=8)


@FAST
@given(config=objects, companions=st.dictionaries(st.sampled_from(COMPANIONS), objects, max_size=2))
def test_any_json_is_recognised_or_unknown(config, companions):
    found = recognise(config, companions)
    assert found.format
    assert (found.scheme.weights is None) == (not found.scheme.groups)


@settings(max_examples=300, deadline=None)
@given(method=st.sampled_from(METHODS), block=objects, rest=objects)
def test_any_block_of_a_known_method_keeps_its_format(method, block, rest):
    found = recognise({**rest, "quantization_config": {**block, "quant_method": method}})
    assert found.format not in {"dense", "unknown"}
    assert found.format.partition("/")[0] in {*read_section("formats"), "compressed-tensors"}


def answer(target):
    """Inspect deeply and print; a CheckpointError is an answer too."""
    try:
        facts = inspect(target, deep=True)
    except CheckpointError as error:
        said = error.message
    else:
        json.dumps(facts.to_dict())
        said = summary(facts).replace("\n", " ")
    assert said
    assert "\n" not in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@FAST
@given(config=objects, index=objects, adapter=st.booleans())
def test_any_json_files_beside_sound_weights(folder, config, index, adapter):
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    sound, tensors = gptq()
    write(folder, {**sound, **config}, {"model.safetensors": tensors})
    if adapter:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    answer(folder)


@FAST
@given(data=st.data())
def test_any_change_of_a_header(folder, data):
    """Change JSON values of a real header, keeping it well-formed, so that checks behind the parser are reached."""
    config, tensors = fp8_blocks()
    content = safetensors_bytes(tensors)
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(header)))
        what = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "name", "drop", "all"]))
        if what == "name":
            header[data.draw(st.text(max_size=12))] = header[name]
        elif what == "drop" and len(header) > 1:
            del header[name]
        elif what == "all":
            header[name] = data.draw(documents)
        elif isinstance(header[name], dict):
            header[name][what] = data.draw(st.one_of(documents, st.lists(st.integers(0, 5000), max_size=3)))
    text = json.dumps(header).encode()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    write(folder, config, {})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    answer(folder)


def mutated(content, data):
    """Flip, cut, or insert a few bytes, mostly near the beginning."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.one_of(st.integers(0, min(400, len(changed) - 1)), st.integers(0, len(changed) - 1)))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "huge"]))
        if action == "flip":
            changed[at] = data.draw(st.integers(0, 255))
        elif action == "cut" and at:
            del changed[at:]
        elif action == "insert":
            changed[at:at] = data.draw(st.binary(max_size=9))
        else:
            changed[at : at + 8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
        if not changed:
            break
    return bytes(changed)


@settings(FAST, max_examples=150)
@given(data=st.data())
def test_any_bytes_of_a_safetensors_file(folder, data):
    config, tensors = gptq()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    write(folder, config, {})
    (folder / "model.safetensors").write_bytes(mutated(safetensors_bytes(tensors), data))
    answer(folder)


def small_gguf():
    """A GGUF file with one of each kind of value."""

    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    pairs = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        string("llama.block_count") + struct.pack("<II", 4, 1),
        string("llama.embedding_length") + struct.pack("<II", 4, 64),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + string("a") + string("b") + string("c"),
        string("llama.attention.head_count") + struct.pack("<IIQ", 9, 5, 2) + struct.pack("<ii", 4, 4),
    ]
    tensors = string("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 4, 8, 0)
    tensors += string("output_norm.weight") + struct.pack("<IQIQ", 1, 64, 0, 288)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(pairs)) + b"".join(pairs) + tensors
    return head + bytes(-len(head) % 32) + bytes(288 + 256)


def test_the_small_gguf_is_sound(folder):
    path = folder / "sound.gguf"
    path.write_bytes(small_gguf())
    facts = inspect(path)
    assert (facts.format, facts.scheme.weights.bits, facts.architecture.hidden_size) == ("gguf", 8, 64)


@settings(FAST, max_examples=250)
@given(data=st.data())
def test_any_bytes_of_a_gguf_file(folder, data):
    path = folder / "model.gguf"
    path.write_bytes(mutated(small_gguf(), data))
    answer(path)


@FAST
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_of_a_config(folder, content):
    path = folder / "other" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    answer(path)
    answer(path.parent)
