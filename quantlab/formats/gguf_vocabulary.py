"""A Hugging Face tokenizer as GGUF metadata: the way back of ``gguf_tokenizer``.

``tokenizer.json`` spells a pipeline out, GGUF wants its name. The steps are compared with those that
``matrix/gguf.yaml`` lists; no match is a refusal, because a file with the wrong name answers in wrong tokens.

SentencePiece models have no scores in ``tokenizer.json``. llama.cpp merges the pair whose result has the highest
score, ``tokenizer.json`` the pair of the lowest rank: minus the rank of a token's first merge is a score that gives
the same order (ggml-org/llama.cpp: src/llama-vocab.cpp, ``llm_tokenizer_spm``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantlab.checkpoint.values import integer, mapping, strings
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.gguf_names import gguf_data
from quantlab.formats.gguf_tokenizer import CONTROL, UNKNOWN, USER_DEFINED, pre_tokenizer_steps

NORMAL, UNUSED, BYTE = 1, 5, 6
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def tokenizer_fields(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tokenizer.*`` metadata of a folder.

    Args:
        folder: holds tokenizer.json, and tokenizer_config.json and chat_template.jinja where there are such.
        config: the model's config (for ``vocab_size`` and token ids that the tokenizer does not name).

    Raises:
        CheckpointError: tokenizer.json is missing or is no BPE model.
        ConversionRefused: GGUF has no name for its pre-tokenizer.
    """
    tokenizer, settings = _json(folder / "tokenizer.json"), _json(folder / "tokenizer_config.json", needed=False)
    model = mapping(tokenizer.get("model"))
    if model.get("type") != "BPE" or not mapping(model.get("vocab")):
        raise CheckpointError(f"{folder}/tokenizer.json: model.type is {model.get('type')!r}, GGUF is written for BPE")
    added = {integer(entry.get("id")): mapping(entry) for entry in map(mapping, tokenizer.get("added_tokens") or [])}
    tokens, kinds = _tokens(model, added, integer(config.get("vocab_size")) or 0)
    fields: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    merges = [pair if isinstance(pair, str) else " ".join(strings(pair)) for pair in model.get("merges") or []]
    if model.get("byte_fallback"):
        fields |= _sentence_piece(tokenizer, tokens, kinds, model)
    else:
        fields |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre_tokenizer_name(tokenizer),
            "tokenizer.ggml.merges": merges,
        }
    fields |= _special_ids(tokens, settings, config)
    fields["tokenizer.ggml.add_bos_token"] = _adds_first(tokenizer, settings, fields)
    template = _template(folder, settings)
    return fields if template is None else fields | {"tokenizer.chat_template": template}


def pre_tokenizer_name(tokenizer: Mapping[str, Any]) -> str:
    """Return GGUF's name for a byte-level tokenizer's way of cutting text.

    Raises:
        ConversionRefused: the data knows none that does the same.
    """
    step = mapping(tokenizer.get("pre_tokenizer"))
    steps = step.get("pretokenizers") if step.get("type") == "Sequence" else [step]
    normalizer = mapping(tokenizer.get("normalizer")).get("type")
    wanted = [_essence(mapping(one)) for one in steps or []]
    for name, entry in gguf_data()["pre_tokenizers"].items():
        if [_essence(one) for one in pre_tokenizer_steps(entry)] == wanted and entry.get("normalizer") == normalizer:
            return str(name)
    message = f"tokenizer.json cuts text with {' + '.join(str(one[0]) for one in wanted)}, which has no known GGUF name"
    raise ConversionRefused(message, hint="add its name to pre_tokenizers in matrix/gguf.yaml, with its source")


def _essence(step: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what of a step decides where text is cut (offsets do not)."""
    match step.get("type"):
        case "Split":
            pattern = mapping(step.get("pattern"))
            return ("Split", pattern.get("Regex"), step.get("behavior"), bool(step.get("invert")))
        case "ByteLevel":
            return ("ByteLevel", bool(step.get("add_prefix_space")), bool(step.get("use_regex", True)))
        case "Digits":
            return ("Digits", bool(step.get("individual_digits")))
        case other:
            return (other,)


def _tokens(
    model: Mapping[str, Any], added: Mapping[int | None, Mapping[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """Return tokens by id and their kinds; ids that nothing names are filled up to the embedding's rows."""
    by_id = {index: token for token, index in mapping(model.get("vocab")).items()}
    by_id |= {index: str(entry.get("content")) for index, entry in added.items() if index is not None}
    count = max(size, max(by_id) + 1)
    tokens, kinds = [], []
    for index in range(count):
        token = by_id.get(index)
        tokens.append(f"[PAD{index}]" if token is None else token)
        kinds.append(UNUSED if token is None else _kind(token, added.get(index), model))
    return tokens, kinds


def _kind(token: str, added: Mapping[str, Any] | None, model: Mapping[str, Any]) -> int:
    if model.get("byte_fallback") and token == model.get("unk_token"):
        return UNKNOWN
    if added is not None:
        return CONTROL if added.get("special") else USER_DEFINED
    return BYTE if model.get("byte_fallback") and _BYTE_TOKEN.fullmatch(token) else NORMAL


def _sentence_piece(
    tokenizer: Mapping[str, Any], tokens: list[str], kinds: list[int], model: Mapping[str, Any]
) -> dict[str, Any]:
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model.get("merges") or []):
        left, _, right = pair.partition(" ") if isinstance(pair, str) else (pair[0], "", pair[1])
        ranks.setdefault(left + right, rank)
    last = len(ranks)
    scores = [
        0.0 if kind in {CONTROL, UNKNOWN, BYTE, UNUSED} else -float(ranks.get(token, last))
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    normalizers = mapping(tokenizer.get("normalizer")).get("normalizers") or []
    prepends = any(mapping(one).get("type") == "Prepend" for one in normalizers)
    metaspace = mapping(tokenizer.get("pre_tokenizer"))
    prepends = prepends or (metaspace.get("type") == "Metaspace" and metaspace.get("prepend_scheme") != "never")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prepends,
    }


def _special_ids(tokens: list[str], settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(tokens)}
    found = {}
    for short, role in _ROLES.items():
        named = settings.get(f"{short}_token")
        token = mapping(named).get("content") if isinstance(named, Mapping) else named
        stated = config.get(f"{short}_token_id")
        first = stated[0] if isinstance(stated, list) and stated else stated
        index = ids.get(token) if isinstance(token, str) else integer(first)
        if index is not None and 0 <= index < len(tokens):
            found[f"tokenizer.ggml.{role}_token_id"] = index
    return found


def _adds_first(tokenizer: Mapping[str, Any], settings: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Say whether encoding puts BOS in front, as the post-processor does it (else as the settings say)."""
    processor = mapping(tokenizer.get("post_processor"))
    steps = processor.get("processors") if processor.get("type") == "Sequence" else [processor]
    for step in map(mapping, steps or []):
        if step.get("type") == "TemplateProcessing":
            single = step.get("single") or [{}]
            first = mapping(mapping(single[0]).get("SpecialToken")).get("id")
            begin = fields.get("tokenizer.ggml.bos_token_id")
            return begin is not None and first == fields["tokenizer.ggml.tokens"][begin]
    return bool(settings.get("add_bos_token", False))


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    stated = settings.get("chat_template")
    if isinstance(stated, list):
        stated = next((mapping(one).get("template") for one in stated if mapping(one).get("name") == "default"), None)
    return stated if isinstance(stated, str) and stated else None


def _json(file: Path, *, needed: bool = True) -> Mapping[str, Any]:
    if not file.is_file():
        if not needed:
            return {}
        raise CheckpointError(f"{file} is missing, and GGUF needs the tokenizer in the file", hint="save the tokenizer")
    try:
        return mapping(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
