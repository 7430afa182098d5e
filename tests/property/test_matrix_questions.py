"""Whatever a question holds, it gets an answer of the right form and never a traceback."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quantlab.matrix.api import check_lines
from quantlab.matrix.model import CONFIDENCES, MODES, OUTCOMES
from quantlab.matrix.versions import MAIN, parse_range, read_version

WORDS = st.sampled_from(
    [
        "gptq",
        "awq",
        "fp8",
        "nvfp4",
        "mxfp4",
        "gguf",
        "quark",
        "vllm",
        "transformers",
        "0.9",
        "~5.0",
        "sm_90",
        "gfx942",
        "load",
        "save",
        "W4A16",
        "Q4_K_M",
        "",
        "()[",
        "-1",
        "e4m3",
    ]
)
KEYS = st.sampled_from(
    [
        "id",
        "method",
        "format",
        "quantization_config",
        "architecture",
        "device",
        "software",
        "engine",
        "operation",
        "bits",
        "group_size",
        "quant_method",
        "config_groups",
        "weights",
        "targets",
        "block_size",
        "arch",
        "product",
        "vendor",
        "vllm",
        "moe",
        "model",
        "tp",
        "model_type",
        "hidden_size",
        "kv_cache_scheme",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=20)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)
QUESTIONS = st.dictionaries(KEYS, VALUES, max_size=9)


@settings(max_examples=300, deadline=None)
@given(QUESTIONS)
def test_every_question_is_answered(question: dict[str, Any]) -> None:
    [answer] = check_lines([json.dumps(question)])
    assert answer["outcome"] in OUTCOMES
    assert answer["mode"] is None or answer["mode"] in MODES
    assert answer["confidence"] in CONFIDENCES
    assert answer["reason"]
    assert answer["outcome"] == "unknown" or answer["sources"]
    json.dumps(answer)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_every_line_is_answered(line: str) -> None:
    assert len(list(check_lines([line]))) == bool(line.strip())


@given(st.text(max_size=40))
def test_every_version_text_is_read_or_not(text: str) -> None:
    found = read_version(text)
    assert found is None or all(isinstance(part, int) and 0 <= part <= MAIN * 100 for part in found.point)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_a_version_lies_on_one_side_of_a_bound(version: list[int], bound: list[int]) -> None:
    found = read_version(".".join(map(str, version)))
    edge = ".".join(map(str, bound))
    assert found is not None
    assert (found in parse_range(f"<{edge}")) != (found in parse_range(f">={edge}"))
