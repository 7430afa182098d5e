"""Text to calibrate on and to measure on, and the promise that these two never overlap by default.

Without a network there is one text that every Python carries: the language reference in
``pydoc_data.topics`` (about 465,000 characters in 3.11). It is split once, by topic, into a calibration and an
evaluation part. Topics repeat whole paragraphs of one another, so a paragraph that stands in the evaluation
part is taken out of the calibration part. The text differs between Python versions; its sha256 goes into every
result, and results on different texts are never compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from quantlab.errors import MissingExtraError, QuantlabError, UsageError

Part = Literal["calibration", "evaluation"]
Message = Mapping[str, str]

CALIBRATION_SHARE = 0.55
"""Share of the built-in characters that calibration gets, before repeated paragraphs are taken out."""

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".json", ".jsonl", ".html", ".py")
"""Files that a folder of texts is made of."""

_TEXT_KEYS = ("text", "content", "prompt", "instruction", "question")
_CHAT_KEYS = ("messages", "conversations", "conversation")


@dataclass(frozen=True, slots=True)
class Text:
    """A text with its identity.

    Attributes:
        name: where it comes from, for people: ``builtin evaluation (python 3.11)``, a file name, a data set.
        content: everything, documents joined by an empty line.
        sha256: of ``content`` in UTF-8.
        chats: the conversations, where the source held any; each a sequence of ``{"role", "content"}``.
        documents: the pieces that ``content`` is joined from, chats as ``role: words`` lines.
    """

    name: str
    content: str
    sha256: str
    documents: tuple[str, ...] = ()
    chats: tuple[tuple[Message, ...], ...] = ()


@lru_cache(maxsize=2)
def builtin(part: Part) -> Text:
    """Return the built-in text of one purpose.

    Args:
        part: ``"calibration"`` or ``"evaluation"``; the two share no paragraph.

    Raises:
        UsageError: there is no such part.
        QuantlabError: this Python was built without its help topics.
    """
    if part not in {"calibration", "evaluation"}:
        message = f"the built-in text has no part {part!r}"
        raise UsageError(message, hint="calibration and evaluation are its parts")
    calibration, evaluation = _split(_topics())
    return _text(f"builtin {part}", calibration if part == "calibration" else evaluation)


def read(source: str, *, part: Part = "calibration") -> Text:
    """Return the text that a user named.

    Args:
        source: ``builtin``, a text file, a JSON Lines or JSON file (``text`` or ``messages`` in each record), a
            folder of such files, or a data set of the hub as ``NAME[:CONFIG][:SPLIT]``.
        part: which part ``builtin`` means.

    Raises:
        UsageError: nothing is there, it holds no text, or a record cannot be read (file and line named).
        MissingExtraError: a data set is named and ``datasets`` is not installed.
    """
    if source in {"builtin", "calibration", "evaluation"}:
        return builtin(part if source == "builtin" else source)
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in TEXT_SUFFIXES and p.is_file())
        return _joined(source, [piece for file in files for piece in _pieces(file)])
    if path.is_file():
        return _joined(path.name, _pieces(path))
    if path.suffix in TEXT_SUFFIXES or source.startswith((".", "/")):
        message = f"there is no text at {source!r}"
        raise UsageError(message, hint="give a file, a folder, a data set NAME[:CONFIG][:SPLIT], or builtin")
    return _joined(source, _dataset(source))


Piece = str | tuple[Message, ...]


def _joined(name: str, pieces: Sequence[Piece]) -> Text:
    chats = tuple(piece for piece in pieces if not isinstance(piece, str))
    documents = [piece if isinstance(piece, str) else _spoken(piece) for piece in pieces]
    return _text(name, [document for document in documents if document.strip()], chats)


def _spoken(chat: Iterable[Message]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in chat)


def _text(name: str, documents: Sequence[str], chats: tuple[tuple[Message, ...], ...] = ()) -> Text:
    content = "\n\n".join(documents)
    if not content:
        message = f"{name} holds no text"
        raise UsageError(message, hint="records need a 'text' or a 'messages' field")
    return Text(name, content, hashlib.sha256(content.encode()).hexdigest(), tuple(documents), chats)


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        message = "this Python carries no help topics, so there is no built-in text"
        raise QuantlabError(message, hint="name a text file or a data set") from error
    return {name: topics[name] for name in sorted(topics)}


def _split(topics: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Split by topic, in alphabetical order, and drop from the first part what the second part says too."""
    limit = CALIBRATION_SHARE * sum(map(len, topics.values()))
    first: list[str] = []
    second: list[str] = []
    used = 0
    for content in topics.values():
        (first if used < limit else second).append(content)
        used += len(content)
    said = {_plain(paragraph) for content in second for paragraph in content.split("\n\n")}
    kept = ("\n\n".join(p for p in content.split("\n\n") if _plain(p) not in said) for content in first)
    return [content for content in kept if content.strip()], second


def _plain(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _pieces(path: Path) -> list[Piece]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path} as UTF-8 text: {error}"
        raise UsageError(message) from error
    if path.suffix == ".jsonl":
        lines = [(n, line) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
        return [_piece(_parsed(line, f"{path}, line {n}"), f"{path}, line {n}") for n, line in lines]
    if path.suffix == ".json":
        records = _parsed(content, str(path))
        records = records if isinstance(records, list) else [records]
        return [_piece(record, f"{path}, record {n}") for n, record in enumerate(records)]
    return [content]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{where} is not JSON: {error}"
        raise UsageError(message) from error


def _piece(record: Any, where: str) -> Piece:
    if isinstance(record, str):
        return record
    if isinstance(record, Mapping):
        for key in _CHAT_KEYS:
            if isinstance(record.get(key), list):
                return _chat(record[key], where)
        for key in _TEXT_KEYS:
            if isinstance(record.get(key), str):
                return str(record[key])
    message = f"{where} has no text"
    raise UsageError(message, hint=f"a record is a string, or holds one of {', '.join((*_TEXT_KEYS, *_CHAT_KEYS))}")


def _chat(messages: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Read a conversation; ``from`` and ``value`` are ShareGPT's words for role and content."""
    roles = {"human": "user", "gpt": "assistant"}
    chat = []
    for entry in messages:
        role = entry.get("role", entry.get("from")) if isinstance(entry, Mapping) else None
        content = entry.get("content", entry.get("value")) if isinstance(entry, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            message = f"{where}: a message needs 'role' and 'content'"
            raise UsageError(message)
        chat.append({"role": roles.get(role, role), "content": content})
    return tuple(chat)


def _dataset(source: str) -> list[Piece]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "llm-compressor", f"reading the data set {source!r}") from error
    name, *rest = source.split(":")
    split = rest[-1] if rest else "train"
    config = rest[0] if len(rest) == 2 else None
    try:
        rows = load_dataset(name, config, split=split)
    except Exception as error:  # the library raises many classes for one fact: the data set is not to be had
        message = f"cannot read the data set {source!r}: {type(error).__name__}: {str(error).splitlines()[0]}"
        raise UsageError(
            message, hint="is the name right, and is the hub reachable? a file needs no network"
        ) from error
    return [_piece(row, f"{source}, row {n}") for n, row in enumerate(rows) if row.get("text", "x")]
