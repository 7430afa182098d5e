"""The rules of ``inspect``: one module each, found through this registry."""

from __future__ import annotations

from quantlab.checkpoint.rules.interface import Rule
from quantlab.registry import Registry

RULES: Registry[Rule] = Registry(
    "rule",
    {
        name: f"quantlab.checkpoint.rules.{name}:check"
        for name in (
            "index_against_shards",
            "pickles_and_code",
            "missing_scales",
            "packed_shapes",
            "group_size",
            "config_dimensions",
            "ignore_entries",
            "unquantized_bulk",
            "uneven_layers",
            "kv_cache_scales",
            "experts_complete",
            "ignored_labels",
            "absmax_shape",
            "fp8_dialect",
            "tied_head",
            "adapter",
        )
    },
)
"""Rule id to function, in the order in which they are asked."""
