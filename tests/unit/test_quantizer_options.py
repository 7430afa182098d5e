"""Options: converted from text, wrong ones named with what would be right."""

import pytest

from quantlab.errors import UnknownNameError, UsageError
from quantlab.quantizers.bitsandbytes import BitsAndBytesOptions
from quantlab.quantizers.gptqmodel import GptqModelOptions
from quantlab.quantizers.llm_compressor import LlmCompressorOptions
from quantlab.quantizers.options import option_values, parse_options


def test_words_become_numbers_flags_and_choices():
    values = {"bits": "8", "group_size": "-1", "symmetric": "false", "damp_percent": "0.1", "method": "awq"}
    options = parse_options(GptqModelOptions, values, "gptqmodel")
    assert options == GptqModelOptions("awq", 8, -1, False, damp_percent=0.1)


def test_optional_options_take_none_and_lists_take_one_word():
    assert parse_options(LlmCompressorOptions, {"kv_cache": "none", "ignore": "re:.*x"}, "x").ignore == ("re:.*x",)
    assert parse_options(LlmCompressorOptions, {"kv_cache": None}, "x").kv_cache is None


def test_defaults_are_filled_in():
    values = option_values(parse_options(BitsAndBytesOptions, {"type": "fp4"}, "bitsandbytes"))
    assert values == {"type": "fp4", "double_quant": False, "keep_dense": ()}


def test_an_unknown_option_offers_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        parse_options(GptqModelOptions, {"groupsize": 64}, "gptqmodel")
    assert "group_size" in caught.value.hint


@pytest.mark.parametrize(
    "values",
    [{"bits": 5}, {"bits": True}, {"group_size": 64.5}, {"group_size": "many"}, {"symmetric": "maybe"}, {"method": 1}],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_name(values):
    with pytest.raises(UsageError, match=f"gptqmodel option {next(iter(values))}"):
        parse_options(GptqModelOptions, values, "gptqmodel")
