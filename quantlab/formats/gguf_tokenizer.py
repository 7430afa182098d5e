"""The tokenizer of a GGUF file as the files of a Hugging Face folder.

GGUF keeps tokens, their kinds, merges or scores and the *name* of a pre-tokenizer; ``tokenizer.json`` spells the
whole pipeline out. The names are data (``matrix/gguf.yaml``); an unknown one is an error, because a wrong
pre-tokenizer gives wrong tokens with no error anywhere.

Two kinds occur in the families that quantlab names::

    tokenizer.ggml.model   pipeline
    gpt2                   byte-level BPE with merges (GPT-2, Llama 3, Qwen, SmolLM)
    llama                  SentencePiece BPE with scores and byte fallback (Llama 2, Mistral)

Sources: ggml-org/llama.cpp: src/llama-vocab.cpp; huggingface/tokenizers: tokenizer.json's serialized form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantlab.errors import CheckpointError
from quantlab.formats.gguf_names import gguf_data

CONTROL, UNKNOWN, USER_DEFINED = 3, 2, 4
"""Token kinds with a meaning here (ggml-org/llama.cpp: include/llama.h, ``llama_token_type``)."""

_SPM_SPACE = "▁"


def tokenizer_files(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokenizer's files by name: ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``.

    Args:
        fields: the file's metadata, key to value.

    Raises:
        CheckpointError: no tokens, or a tokenizer or pre-tokenizer that the data does not know.
    """
    if not fields.get("tokenizer.ggml.tokens"):
        raise CheckpointError("the GGUF file has no tokenizer.ggml.tokens, so no tokenizer can be made from it")
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    elif kind == "llama":
        tokenizer = _sentence_piece(fields)
    else:
        message = f"tokenizer.ggml.model is {kind!r}, which quantlab cannot write as tokenizer.json"
        raise CheckpointError(message, hint="known kinds: gpt2, llama")
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(_config(fields), ensure_ascii=False, indent=2) + "\n",
    }
    template = fields.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template
    return files


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the tokenizer's files into an existing folder and return their names."""
    files = tokenizer_files(fields)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return list(files)


def pre_tokenizer(name: object) -> Mapping[str, Any]:
    """Return the data of one pre-tokenizer.

    Raises:
        CheckpointError: the data has no pre-tokenizer of that name.
    """
    known: Mapping[str, Mapping[str, Any]] = gguf_data()["pre_tokenizers"]
    if not isinstance(name, str) or name not in known:
        message = f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that quantlab does not know"
        raise CheckpointError(message, hint=f"known: {', '.join(known)}; others are added in matrix/gguf.yaml")
    return known[name]


def pre_tokenizer_steps(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a pre-tokenizer's steps as ``tokenizer.json`` writes them."""
    steps = {
        "digits": {"type": "Digits", "individual_digits": True},
        "split": {
            "type": "Split",
            "pattern": {"Regex": entry.get("split", "")},
            "behavior": "Isolated",
            "invert": False,
        },
        "byte_level": _byte_level_step(use_regex=False),
        "byte_level_regex": _byte_level_step(use_regex=True),
    }
    return [steps[step] for step in entry["steps"]]


def _byte_level_step(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _byte_level(fields: Mapping[str, Any]) -> dict[str, Any]:
    entry = pre_tokenizer(fields.get("tokenizer.ggml.pre"))
    steps = pre_tokenizer_steps(entry)
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    normalizer = entry.get("normalizer")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(fields),
        "normalizer": None if normalizer is None else {"type": normalizer},
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _prefix(fields) or _byte_level_step(use_regex=False),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": bool(entry.get("ignore_merges", False)),
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields.get("tokenizer.ggml.merges") or []],
        },
    }


def _sentence_piece(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    space = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    prepend = [{"type": "Prepend", "prepend": _SPM_SPACE}] if space else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPM_SPACE}
    decode = [
        {"type": "Replace", "pattern": {"String": _SPM_SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(fields),
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": _prefix(fields),
        "decoder": {"type": "Sequence", "decoders": [*decode, *strip]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": _merges_from_scores(tokens, fields.get("tokenizer.ggml.scores") or []),
        },
    }


def _merges_from_scores(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """Recover the merges of a SentencePiece BPE model: every split of a token into two tokens, best token first.

    SentencePiece merges the pair whose *result* has the highest score; a list of pairs ordered so does the same.
    Splits of one token are ordered by the ids of their halves.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    pairs = []
    for index, token in enumerate(tokens):
        score = scores[index] if index < len(scores) else 0.0
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                pairs.append((-score, index, ids[left], ids[right], [left, right]))
    return [pair for *_, pair in sorted(pairs, key=lambda row: row[:4])]


def _added(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return control tokens (special) and user-defined ones as ``added_tokens``."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields.get("tokenizer.ggml.token_type") or []
    return [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in {CONTROL, UNKNOWN},
        }
        for index, kind in enumerate(kinds[: len(tokens)])
        if kind in {CONTROL, UNKNOWN, USER_DEFINED}
    ]


def _prefix(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the post-processor that puts BOS (and EOS) around a text, or None where the file asks for neither."""
    default = fields.get("tokenizer.ggml.model") == "llama"
    first = _token(fields, "bos") if fields.get("tokenizer.ggml.add_bos_token", default) else None
    last = _token(fields, "eos") if fields.get("tokenizer.ggml.add_eos_token", False) else None
    if first is None and last is None:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        middle = {"Sequence": {"id": sequence, "type_id": kind}}
        ends = [None if end is None else {"SpecialToken": {"id": end, "type_id": kind}} for end in (first, last)]
        return [part for part in (ends[0], middle, ends[1]) if part is not None]

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]} for token in (first, last) if token
        },
    }


def _token(fields: Mapping[str, Any], role: str) -> str | None:
    index = fields.get(f"tokenizer.ggml.{role}_token_id")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None


def _config(fields: Mapping[str, Any]) -> dict[str, Any]:
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    named = {f"{name}_token": _token(fields, role) for role, name in roles.items()}
    context = next((value for key, value in fields.items() if key.endswith(".context_length")), None)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": context} if isinstance(context, int) else {}),
        **{key: value for key, value in named.items() if value is not None},
    }
