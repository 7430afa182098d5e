"""The check after writing: does the result load whole, compute finite numbers, and still know the language?

The folder is read back in a fresh process, as a user would. Several libraries write complete folders that load
with random experts, stop at the first forward pass or give NaN; in most of these cases no error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from quantlab import worker
from quantlab.progress import Observer, Progress, silent
from quantlab.text import builtin

Report = Callable[[Progress | Mapping[str, Any]], None]
Depth = Literal["none", "load", "quality"]

WINDOWS, LENGTH = 4, 512
"""Evaluation windows and their tokens: about two seconds of forward passes for 135 million parameters."""
RUINED, DEGRADED = 10.0, 2.0
"""Perplexity as a multiple of the source's: above the first the result is refused, above the second warned of."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What the check saw.

    Attributes:
        ok: the result may be published.
        problems: why not.
        warnings: what the user should know.
        perplexity: of the result, on the evaluation text; None where it was not measured.
        source_perplexity: of the source on the same windows.
        tokens: predicted tokens.
        text_sha256: hash of the evaluation text.
        modules: module class to count, of the loaded result.
        seconds: time of the whole check.
    """

    ok: bool
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    perplexity: float | None = None
    source_perplexity: float | None = None
    tokens: int = 0
    text_sha256: str | None = None
    modules: Mapping[str, int] | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the values for provenance."""
        return asdict(self)


def verify(
    source: Path, output: Path, depth: Depth, *, device: str, log: Path | None = None, observe: Observer = silent
) -> Verification | None:
    """Read the result back and judge it; None where the user wants no check."""
    if depth == "none":
        return None
    folders = [output, source] if depth == "quality" else [output]
    ended = worker.run(
        "quantlab.quantizers.verification:measure",
        {"folders": [str(folder) for folder in folders], "device": device},
        log=log,
        environment={"HF_HUB_OFFLINE": "1"},
        observe=observe,
    )
    found, before = ended.partial.get("0"), ended.partial.get("1")
    if found is None:
        words = f"{ended.error}: {(ended.message or ended.kind).strip().splitlines()[0]}"
        return Verification(ok=False, problems=(f"the result does not load or run: {words}",), seconds=ended.seconds)
    return _judged(found, None if before is None else before["perplexity"], round(ended.seconds, 2))


def _judged(found: Mapping[str, Any], reference: float | None, seconds: float) -> Verification:
    problems, warnings = _problems(found), list[str]()
    measured = found["perplexity"]
    if reference is not None and measured is not None and measured > DEGRADED * reference:
        words = f"perplexity rose from {reference:.2f} to {measured:.2f}"
        (problems if measured > RUINED * reference else warnings).append(words)
    return Verification(
        not problems,
        tuple(problems),
        tuple(warnings),
        measured,
        reference,
        found["tokens"],
        found["text_sha256"],
        found["modules"],
        seconds,
    )


def _problems(result: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{len(result[kind])} {kind.replace('_', ' ')} when loaded, the first is {result[kind][0]}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if result[kind]
    ]
    if result["perplexity"] is None:
        problems.append("the logits are not finite")
    return problems


def measure(argument: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Measure folders one after the other; runs in a worker.

    Args:
        argument: ``folders`` (the result, then perhaps the source) and ``device``.
        report: receives what ``measure_folder`` saw of each folder, under its number as text.
    """
    folders = argument["folders"]
    for number, folder in enumerate(folders):
        words = "loading the result" if number == 0 else "measuring the source"
        report(Progress("verify", number, len(folders), "models", words))
        report({str(number): measure_folder(Path(folder), argument["device"])})
    return {}


def measure_folder(folder: Path, device: str) -> dict[str, Any]:
    """Load a folder and measure it.

    Returns:
        The loading report's keys, module classes, and the perplexity, None where a logit is not finite.
    """
    from collections import Counter

    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto",
        device_map=device,
        output_loading_info=True,
        local_files_only=True,
    )
    text = builtin("evaluation")
    windows = _windows(folder, text.content, model)
    perplexity = _perplexity(model.eval(), windows)
    return {
        **{kind: sorted(map(str, loading.get(kind) or ())) for kind in ("missing_keys", "unexpected_keys")},
        "mismatched_keys": sorted(map(str, loading.get("mismatched_keys") or ())),
        "modules": dict(Counter(type(module).__name__ for module in model.modules())),
        "perplexity": perplexity,
        "tokens": sum(len(window) - 1 for window in windows),
        "text_sha256": text.sha256,
    }


def _windows(folder: Path, content: str, model: Any) -> list[list[int]]:
    """Return evaluation windows; without a tokenizer, pseudo-random ids that only prove finite numbers."""
    from transformers import AutoTokenizer

    config = model.config.get_text_config()
    length = min(LENGTH, getattr(config, "max_position_embeddings", LENGTH) or LENGTH)
    try:
        ids = AutoTokenizer.from_pretrained(folder, local_files_only=True)(content, verbose=False)["input_ids"]
    except (OSError, ValueError):
        ids = [(7919 * n) % config.vocab_size for n in range(WINDOWS * length)]
    ids = [min(int(i), config.vocab_size - 1) for i in ids[: WINDOWS * length]]
    return [ids[n : n + length] for n in range(0, len(ids) - 1, length)]


def _perplexity(model: Any, windows: list[list[int]]) -> float | None:
    import torch

    total, tokens = 0.0, 0
    with torch.inference_mode():
        for window in windows:
            ids = torch.tensor([window], device=model.device)
            logits = model(input_ids=ids).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            if not torch.isfinite(logits).all():
                return None
            total, tokens = total + float(loss), tokens + len(window) - 1
    return float(torch.exp(torch.tensor(total / max(tokens, 1), dtype=torch.float64)))
