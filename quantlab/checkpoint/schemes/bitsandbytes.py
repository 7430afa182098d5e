"""bitsandbytes: 4-bit codebooks in flat blocks with one absmax each, or int8 by row.

Blocks are 64 weights of the flattened matrix by default (bitsandbytes-foundation/bitsandbytes:
bitsandbytes/functional.py, ``quantize_4bit``); the config does not state the size.
"""

from __future__ import annotations

from quantlab.checkpoint.facts import ActivationScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.flat import ignore_list
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine
from quantlab.checkpoint.values import boolean, first, integer, mapping, text

INT8 = WeightScheme(8, "int", "channel", None, symmetric=True, dtype="int8", scale_dtype="float32")


def read(source: Source) -> Reading:
    """Read a bitsandbytes config: ``load_in_8bit`` decides between the two."""
    block, defaults = source.block, mapping(source.format.get("defaults"))
    eight = boolean(first(block, ("load_in_8bit", "_load_in_8bit")))
    four = boolean(first(block, ("load_in_4bit", "_load_in_4bit")))
    bits = integer(block.get("bits"))
    if eight is True or (four is not True and bits == 8):
        activations = ActivationScheme(bits=8, type="int", granularity="token", dynamic=True, dtype="int8")
        groups = [SchemeGroup(INT8, ("Linear",), activations)]
    else:
        groups = [SchemeGroup(_codebook(source, defaults), ("Linear",))]
    return Reading(combine(groups), ignore=ignore_list(source.format, block))


def _codebook(source: Source, defaults: object) -> WeightScheme:
    name = (text(first(source.block, ("bnb_4bit_quant_type", "format"))) or "").lower()
    if name not in {"nf4", "fp4"}:
        name = str(mapping(defaults).get("quant_type", "fp4"))
    size = integer(first(source.block, ("bnb_4bit_blocksize", "block_size"))) or integer(
        mapping(defaults).get("block_size")
    )
    double = boolean(source.block.get("bnb_4bit_use_double_quant"))
    return WeightScheme(
        4, name, "block", size, symmetric=True, dtype=name, scale_dtype="uint8" if double else "float32"
    )
