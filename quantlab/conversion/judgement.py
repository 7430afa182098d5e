"""Will the output run where it shall: the matrix is asked before anything is written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantlab.conversion.documents import output_config
from quantlab.conversion.jobs import Plan
from quantlab.errors import ConversionRefused

REFUSED = ("fails", "silent-wrong-result")


def judged(plan: Plan, config: Mapping[str, Any], *, gpu: str | None, engine: str | None, force: bool) -> Plan:
    """Return the plan with the matrix's verdict on its output.

    Args:
        plan: the conversion.
        config: the source's ``config.json``.
        gpu: gpu on which the output shall run.
        engine: engine that shall load it.
        force: keep a plan whose output fails.

    Raises:
        ConversionRefused: the matrix says that the output fails there; names the reason and a way out.
    """
    from quantlab.matrix.api import check

    with tempfile.TemporaryDirectory(prefix="quantlab-plan-") as folder:
        path = Path(folder) / "config.json"
        target: str | Path = path
        if plan.case == "quantizer":
            target = plan.preset.name  # what the library will write is known to the matrix as a method
        else:
            path.write_text(json.dumps(output_config(plan, config, ())), encoding="utf-8")
        verdict = check(target, gpu=gpu, engine=engine).to_dict()
    content = {"gpu": gpu, "engine": engine, **verdict}
    if verdict["outcome"] in REFUSED and not force:
        raise ConversionRefused(
            f"the output ({plan.target_format}) {_words(verdict['outcome'])} on "
            f"{' with '.join(filter(None, (gpu, engine)))}: {verdict['reason']}",
            hint=f"{verdict['fix'] or 'take another preset'}; --force converts all the same",
        )
    return replace(plan, verdict=content)


def _words(outcome: str) -> str:
    return "gives wrong results" if outcome == "silent-wrong-result" else "fails"
