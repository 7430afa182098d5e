"""A config that promises static KV cache scales needs ``k_scale`` and ``v_scale`` (or output scales) in the files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened

_SCALE = re.compile(
    r"(\.|_)(k|v|kv|kv_cache)_scales?$|(k_proj|v_proj|kv_proj|qkv_proj|kv_b_proj)\.(output_scale|k_scale|v_scale)$|kv_cache_scale$"
)


def check(opened: Opened) -> Iterator[Finding]:
    """Report declared but absent scales, and absent declarations of present ones."""
    names = opened.facts.tensors or opened.listing.index
    if not names:
        return
    cache = opened.facts.scheme.kv_cache
    found = any(_SCALE.search(name) for name in names)
    where = opened.recognition.where or "config.json"
    if cache is not None and cache.static_scales and not found:
        message = f"the config declares a {cache.dtype or cache.type} KV cache, no scale is there"
        fix = "engines use scale 1.0, which can ruin quality; calibrate KV scales or serve a 16-bit cache"
        yield Finding("kv-scale-missing", "warning", where, message, fix)
    if cache is None and found and opened.facts.scheme.weights is not None:
        name = next(name for name in names if _SCALE.search(name))
        yield Finding("kv-scale-undeclared", "info", where, f"KV scales such as {name} are there, the config is silent")
