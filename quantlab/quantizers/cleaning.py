"""Takes out of a written checkpoint what a library leaks into it: calibration texts, temporary paths.

Which keys leak is data (``strip`` in ``matrix/quantizers``). A path below the scratch folder is taken out
wherever it stands, so that a library that starts to write one under a new key does not leak it either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIGS = ("config.json", "quantize_config.json", "quant_config.json")
_MISSING = object()


def strip_leaks(folder: Path, keys: Sequence[str], scratch: Sequence[Path]) -> list[str]:
    """Remove leaking keys from the config files of a checkpoint.

    Args:
        folder: the written checkpoint.
        keys: dotted keys below ``quantization_config`` (``dataset``, ``meta.offload_to_disk_path``).
        scratch: folders whose paths must appear nowhere.

    Returns:
        The dotted keys that were taken out, with their file.
    """
    removed = []
    for path in (folder / name for name in CONFIGS):
        if not path.is_file():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        section = content.get("quantization_config", content) if path.name == "config.json" else content
        gone = [key for key in keys if _remove(section, key.split("."))]
        gone += _remove_paths(content, tuple(str(s) for s in scratch))
        if gone:
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            removed += [f"{path.name}: {key}" for key in gone]
    return removed


def _remove(section: Any, parts: Sequence[str]) -> bool:
    for part in parts[:-1]:
        section = section.get(part) if isinstance(section, dict) else None
    return isinstance(section, dict) and section.pop(parts[-1], _MISSING) not in (_MISSING, None)


def _remove_paths(node: Any, scratch: tuple[str, ...], where: str = "") -> list[str]:
    removed = []
    if isinstance(node, dict):
        for key, value in list(node.items()):
            name = f"{where}.{key}" if where else key
            if isinstance(value, str) and any(s in value for s in scratch):
                del node[key]
                removed.append(name)
            else:
                removed += _remove_paths(value, scratch, name)
    elif isinstance(node, list):
        for value in node:
            removed += _remove_paths(value, scratch, where)
    return removed
