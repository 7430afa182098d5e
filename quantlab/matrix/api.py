"""The public Python API of the matrix: ``check`` and ``Matrix``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from quantlab.errors import UnknownNameError, UsageError
from quantlab.matrix.data import section
from quantlab.matrix.evidence import weigh
from quantlab.matrix.gpus import find_gpu
from quantlab.matrix.load import MatrixData, load, read_sources
from quantlab.matrix.model import OPERATIONS, Statement, Verdict
from quantlab.matrix.query import Query, answer
from quantlab.matrix.question import engine_id, package_name, read_question
from quantlab.matrix.subject import Facts, complete, from_checkpoint
from quantlab.matrix.versions import History, Version, read_version
from quantlab.matrix.wayout import with_way_out

_BEST = ("works", "works-with-fallback", "silent-wrong-result", "fails", "unknown")
_LONGEST_LINE = 60_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``check`` says of one target: one verdict an engine, the best first.

    Attributes:
        subject: what was judged, in a few words.
        facts: the flat facts that it was judged by.
        verdicts: by engine; only one where an engine was named.
    """

    subject: str
    facts: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The best verdict."""
        return self.verdicts[0]

    @property
    def ok(self) -> bool:
        """Whether any of the engines runs it."""
        return self.verdict.ok

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab check``."""
        content: dict[str, Any] = {"subject": self.subject, "facts": dict(self.facts), **self.verdict.to_dict()}
        if len(self.verdicts) > 1:
            content["engines"] = [verdict.to_dict() for verdict in self.verdicts]
        return content


def check(
    target: str | Path,
    *,
    gpu: str | None = None,
    engine: str | None = None,
    operation: str | None = None,
    versions: Mapping[str, str] | None = None,
    tensor_parallel: int | None = None,
) -> Answer:
    """Say whether a checkpoint or method runs on a gpu in an engine, and why.

    Args:
        target: a folder, a hub id, a ``config.json``, a ``.gguf`` file, or a method.
        gpu: an architecture id, a product, or ``local``; typical gpus are assumed if left out.
        engine: an engine id; every main engine is asked if left out.
        operation: one of load, inference, quantize, convert, save, perplexity, install, train.
        versions: package to version; the newest known release counts where one is missing.
        tensor_parallel: gpus that each layer is split over.

    Raises:
        UnknownNameError: no such gpu, engine or method.
        CheckpointError: the target cannot be read.
    """
    data = load()
    facts = _facts(str(target), data)
    if tensor_parallel is not None:
        if tensor_parallel < 1:
            raise UsageError(f"tensor parallel size {tensor_parallel} is below 1", hint="--tensor-parallel 2")
        facts["tensor_parallel"] = tensor_parallel
    if operation is not None and operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    query = Query(
        facts, _known_engine(engine, data), *_gpus(gpu, data), _read_versions(versions or {}, data), operation
    )
    engines = [query.engine] if query.engine else [item.id for item in data.engines.values() if item.main]
    verdicts = [judge(replace(query, engine=name), data) for name in engines]
    verdicts.sort(key=lambda verdict: _BEST.index(verdict.outcome))
    return Answer(describe(str(target), facts), facts, tuple(verdicts))


def judge(query: Query, data: MatrixData | None = None) -> Verdict:
    """Return the verdict of one query with evidence weighed in and a way out that was checked."""
    data = load() if data is None else data
    return with_way_out(weigh(answer(query, data), query), query, data)


def _facts(target: str, data: MatrixData) -> Facts:
    words = target.strip().lower()
    if words in data.methods:
        return complete({"method": words})
    path = Path(target)
    if not path.exists() and "/" not in target and not words.endswith((".json", ".gguf", ".safetensors")):
        facts = read_question({"method": target}, data).facts
        if facts.get("method") or facts.get("scheme"):
            return dict(facts)
        known = [*data.methods, *sorted(section("presets").get("presets", {}))]
        raise UnknownNameError(
            "method or checkpoint", target, known, hint="a folder, a hub id, a config.json or a method"
        )
    return _of_checkpoint(target)


def _of_checkpoint(target: str) -> Facts:
    """Return what a checkpoint's configs say, and what its tensors add to it."""
    from quantlab.checkpoint.inspection import findings_of
    from quantlab.checkpoint.open import open_checkpoint

    opened = open_checkpoint(target)
    found = opened.facts
    facts = from_checkpoint(found.format, found.scheme, found.architecture, found.quantization_config)
    if found.tensors:
        table = section("words")["findings"]
        for finding in findings_of(opened):
            if finding.severity != "info":
                facts.update(table.get(finding.rule, {}))
    return facts


def _known_engine(word: str | None, data: MatrixData) -> str | None:
    if word is None:
        return None
    found = engine_id(word, data)
    if found is None:
        raise UnknownNameError("engine", word, data.engines)
    return found


def _gpus(word: str | None, data: MatrixData) -> tuple[tuple[str, ...], bool]:
    if word is None:
        return data.gpus.typical["any"], False
    if word.strip().lower() == "local":
        from quantlab.hardware.machine import local_architectures

        return tuple(local_architectures()), True
    return (find_gpu(data.gpus, word),), True


def _read_versions(words: Mapping[str, str], data: MatrixData) -> dict[str, Version]:
    found = {}
    for name, text in words.items():
        package = package_name(name)
        version = read_version(text, data.packages.get(package, History()))
        if version is None:
            raise UsageError(f"{text!r} is not a version of {name}", hint="--with vllm=0.33.0")
        found[package] = version
    return found


def describe(target: str, facts: Mapping[str, Any]) -> str:
    """Return what was judged in a few words."""
    form = "/".join(str(facts[key]) for key in ("format", "variant") if facts.get(key))
    parts = [f"format {form or 'unknown'}", f"scheme {facts.get('scheme') or 'unknown'}"]
    if facts.get("group_size") is not None:
        parts.append(f"group {facts['group_size']}")
    return f"{target}: {', '.join(parts)}"


def check_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Answer JSON Lines; a line that cannot be read gets an answer that says so.

    Yields:
        one object a line that is not empty, with the keys of DESIGN.md.
    """
    data = load()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = _json(line)
        if isinstance(words, str):
            yield {"id": None, **Verdict("unknown", f"line {number} {words}").to_dict()}
            continue
        verdict = judge(read_question(words, data), data)
        yield {"id": words.get("id"), **verdict.to_dict()}


def _json(line: str) -> dict[str, Any] | str:
    if len(line) > _LONGEST_LINE:
        return f"is longer than {_LONGEST_LINE} characters"
    try:
        words = json.loads(line)
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return f"is not JSON: {error}"
    return words if isinstance(words, dict) else "is not a JSON object"


class Matrix:
    """The compatibility matrix, as data.

    Args:
        folder: another folder of matrix data than the installed one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @cached_property
    def data(self) -> MatrixData:
        """The typed data."""
        return load(self._folder)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Every statement."""
        return self.data.statements

    def ask(self, words: Mapping[str, Any]) -> Verdict:
        """Answer one question in the words of ``--queries``."""
        return judge(read_question(words, self.data), self.data)

    def source(self, name: str) -> Mapping[str, Any]:
        """Return a source by id.

        Raises:
            UnknownNameError: no source has that id.
        """
        sources = read_sources(self._folder)
        if name not in sources:
            raise UnknownNameError("source", name, sources)
        return sources[name]
