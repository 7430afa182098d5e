"""Scheme readers: one module a kind of config, found through this registry."""

from __future__ import annotations

from quantlab.checkpoint.schemes.interface import SchemeReader
from quantlab.registry import Registry

SCHEME_READERS: Registry[SchemeReader] = Registry(
    "scheme reader",
    {
        "ascend": "quantlab.checkpoint.schemes.ascend:read",
        "bitsandbytes": "quantlab.checkpoint.schemes.bitsandbytes:read",
        "codebooks": "quantlab.checkpoint.schemes.codebooks:read",
        "compressed-tensors": "quantlab.checkpoint.schemes.compressed_tensors:read",
        "flat": "quantlab.checkpoint.schemes.flat:read",
        "fp8": "quantlab.checkpoint.schemes.fp8:read",
        "mistral": "quantlab.checkpoint.schemes.mistral:read",
        "mlx": "quantlab.checkpoint.schemes.mlx:read",
        "modelopt": "quantlab.checkpoint.schemes.modelopt:read",
        "named": "quantlab.checkpoint.schemes.named:read",
        "none": "quantlab.checkpoint.schemes.flat:nothing",
        "quark": "quantlab.checkpoint.schemes.quark:read",
        "torchao": "quantlab.checkpoint.schemes.torchao:read",
    },
)
"""Reader id, as ``matrix/formats`` names it, to the function."""
