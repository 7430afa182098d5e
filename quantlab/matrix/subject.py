"""One normalizer: a checkpoint's facts and people's words become the same flat facts.

``check FOLDER`` and ``check --queries`` meet here. Configs that a loader would read go through
``quantlab.checkpoint.recognition``; words go through the rules of matrix/words.yaml; both then get the defaults
of their method and the class of their numbers (matrix/schemes.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Architecture, Scheme, WeightScheme
from quantlab.checkpoint.values import mapping
from quantlab.matrix.data import section
from quantlab.matrix.model import FACTS, Scalar, Test

Facts = dict[str, Scalar]

_MARKS = frozenset({"quant_method", "config_groups", "quant_algo", "quantization", "producer"})
_SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size")


def from_checkpoint(
    format_id: str, scheme: Scheme, architecture: Architecture, config: Mapping[str, Any] | None
) -> Facts:
    """Return the flat facts of a recognised checkpoint.

    Args:
        format_id: such as ``compressed-tensors/pack-quantized``.
        scheme: its numbers.
        architecture: its shape.
        config: the raw quantization config, or None for a dense checkpoint.
    """
    facts: Facts = {}
    head, _, variant = format_id.partition("/")
    facts["format"] = head
    if variant:
        facts["variant"] = variant
    _add_weights(facts, scheme.weights)
    _add_activations(facts, scheme.activations or _group_activations(scheme))
    if scheme.kv_cache is not None:
        facts["kv_cache"] = scheme.kv_cache.type or "float"
        facts["kv_scales"] = bool(scheme.kv_cache.static_scales)
    if scheme.mixed:
        facts["mixed"] = True
    _add_config(facts, config or {})
    _add_architecture(facts, architecture)
    return complete(facts)


def from_words(words: Mapping[str, Any]) -> Facts:
    """Return the flat facts of one query line (fields as in reports/dev.json)."""
    config = mapping(words.get("quantization_config"))
    architecture = mapping(words.get("architecture"))
    facts = _recognised(words, config, architecture)
    if facts is None:
        facts = {}
        _apply_rules(facts, _phrase(words, config))
        _add_plain_config(facts, config)
        _add_plain_architecture(facts, architecture)
    else:
        for key, fact in (("tp", "tensor_parallel"), ("tensor_parallel", "tensor_parallel"), ("ep", "expert_parallel")):
            if isinstance(architecture.get(key), int):
                facts[fact] = architecture[key]
    return complete(facts)


def _recognised(words: Mapping[str, Any], config: Mapping[str, Any], architecture: Mapping[str, Any]) -> Facts | None:
    """Return what a loader's own config says, or None where the question is in people's words."""
    raw_model = "architectures" in architecture or "model_type" in architecture
    spoken = any(isinstance(words.get(key), str) and words[key] for key in ("method", "format"))
    if not (_MARKS & set(config)) and (spoken or not raw_model):
        return None
    from quantlab.checkpoint.recognition import recognise

    inner = {"quantization_config": dict(config)} if config else {}
    found = recognise({**architecture, **inner}, {})
    if spoken and (found.format == "unknown" or _numberless(found.format, found.scheme)):
        return None
    return from_checkpoint(found.format, found.scheme, found.architecture, found.quantization_config)


def _numberless(format_id: str, scheme: Scheme) -> bool:
    """Tell whether a few keys of a config name a container and leave its numbers to the words beside it."""
    head = format_id.partition("/")[0]
    weights = scheme.weights
    return head in {"compressed-tensors", "modelopt", "quark"} and (weights is None or weights.bits is None)


def complete(facts: Facts) -> Facts:
    """Add the method's defaults and the class of numbers; facts already there stay."""
    method = facts.get("method") or _method_of(facts)
    if method is not None:
        facts["method"] = method
        entry = section("methods").get(str(method)) or {}
        if not _typed_by(facts):
            for key, value in (entry.get("defaults") or {}).items():
                facts.setdefault(key, value)
        facts.setdefault("format", (entry.get("formats") or [str(method)])[0].partition("/")[0])
    for rule in _scheme_rules():
        if all(test.holds(facts.get(key)) for key, test in rule[1].items()):
            facts.setdefault("scheme", rule[0])
            break
    return facts


def _typed_by(facts: Facts) -> bool:
    return "scheme" in facts and "bits" in facts


def _method_of(facts: Facts) -> str | None:
    for method, entry in section("methods").items():
        if facts.get("format") in {name.partition("/")[0] for name in entry.get("formats") or ()} and entry.get(
            "owns_format", True
        ):
            return str(method)
    return None


@lru_cache(maxsize=1)
def _scheme_rules() -> tuple[tuple[str, dict[str, Test]], ...]:
    from quantlab.matrix.load import read_test

    rules: list[tuple[str, dict[str, Test]]] = []
    for entry in section("schemes")["schemes"]:
        name = str(entry["id"])
        rules.extend(
            (name, {key: read_test("schemes.yaml", name, key, raw) for key, raw in condition.items()})
            for condition in entry["when"]
        )
    return tuple(rules)


def _add_weights(facts: Facts, weights: WeightScheme | None) -> None:
    if weights is None:
        return
    size = weights.group_size
    known: dict[str, Scalar | None] = {
        "bits": weights.bits,
        "type": weights.type,
        "dtype": weights.dtype,
        "granularity": weights.granularity,
        "symmetric": weights.symmetric,
        "group_size": size[1] if isinstance(size, tuple) else size,
        "block_rows": size[0] if isinstance(size, tuple) else None,
    }
    facts.update({key: value for key, value in known.items() if value is not None})


def _group_activations(scheme: Scheme) -> ActivationScheme | None:
    return next((group.activations for group in scheme.groups if group.activations is not None), None)


def _add_activations(facts: Facts, activations: ActivationScheme | None) -> None:
    if activations is None:
        return
    known = {
        "activation_bits": activations.bits,
        "activation_type": activations.type,
        "activation_dynamic": activations.dynamic,
    }
    facts.update({key: value for key, value in known.items() if value is not None})


def _add_config(facts: Facts, config: Mapping[str, Any]) -> None:
    """Facts of a loader's config that are not numbers."""
    if config.get("desc_act") is True or _dynamic_order(config):
        facts["desc_act"] = True
    layout = config.get("version") if facts.get("format") == "awq" else config.get("checkpoint_format")
    if isinstance(layout, str):
        facts["layout"] = layout.lower()
    if config and not config.get("quant_method") and facts.get("format") not in {"modelopt", "mlx", "gguf"}:
        facts["quant_method_missing"] = True
    if config.get("lm_head") is True:
        facts["quantized_head"] = True
    if config.get("bnb_4bit_use_double_quant") is True:
        facts["double_quant"] = True
    groups = config.get("config_groups")
    if isinstance(groups, Mapping):
        targets = [
            str(item)
            for group in groups.values()
            if isinstance(group, Mapping)
            for item in _items(group.get("targets"))
        ]
        facts["class_target"] = any(target in {"Linear", "FusedMoE"} for target in targets)
        if any("embed" in target.lower() for target in targets):
            facts["quantized_embeddings"] = True
    sparse = config.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format") not in {None, "dense"}:
        facts["sparse"] = True


def _dynamic_order(config: Mapping[str, Any]) -> bool:
    """compressed-tensors' word for act order with a group map."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        return False
    weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
    return any(isinstance(item, Mapping) and item.get("actorder") in {"group", "dynamic", True} for item in weights)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _add_architecture(facts: Facts, architecture: Architecture) -> None:
    known: dict[str, Scalar | None] = {key: getattr(architecture, key) for key in _SIZES}
    known["tied_embeddings"] = architecture.tied_embeddings or None
    known["multimodal"] = architecture.multimodal or None
    known["moe"] = bool(architecture.num_experts) or None
    known["mla"] = bool(architecture.kv_lora_rank) or None
    facts.update({key: value for key, value in known.items() if value is not None})
    _apply_model_name(facts, " ".join(filter(None, [architecture.model_type, *architecture.architectures])))


# words


def _phrase(words: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    scheme = config.get("scheme") or config.get("quantization_scheme") or config.get("config")
    parts = [words.get("method"), words.get("format"), scheme]
    return " | ".join(str(part).lower()[:200] for part in parts if isinstance(part, str | int | float))


@lru_cache(maxsize=1)
def _rules() -> tuple[tuple[re.Pattern[str], dict[str, Scalar]], ...]:
    words = section("words")
    return tuple((re.compile(rule["match"]), dict(rule["set"])) for rule in words["phrases"])


def _apply_rules(facts: Facts, phrase: str) -> None:
    for pattern, values in _rules():
        if pattern.search(phrase):
            for key, value in values.items():
                facts.setdefault(key, value)


def _add_plain_config(facts: Facts, config: Mapping[str, Any]) -> None:
    """Apply matrix/words.yaml's table of config keys that people write."""
    words = section("words")
    for key, raw in config.items():
        value = raw[0] if isinstance(raw, list) and raw and key != "block_size" else raw
        rule = words["config_keys"].get(key)
        if rule is None or value is None:
            continue
        _apply_key(facts, rule, value)
    block = config.get("block_size") or config.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(isinstance(item, int) for item in block):
        facts.update({"granularity": "block", "block_rows": block[0], "group_size": block[1]})


def _apply_key(facts: Facts, rule: Mapping[str, Any], value: Any) -> None:
    if "patterns" in rule:
        text = str(value).lower()[:400]
        for entry in rule["patterns"]:
            if re.search(entry["match"], text):
                facts.update(entry["set"])
        return
    fact = rule["fact"]
    if rule.get("negate"):
        if isinstance(value, bool):
            facts[fact] = not value
    elif rule.get("kind") == "flag":
        if value is True or (rule.get("any") and value):
            facts[fact] = True
    elif rule.get("kind") == "number":
        if isinstance(value, int | float) and not isinstance(value, bool):
            facts[fact] = value
    elif isinstance(value, str | bool):
        facts[fact] = value.lower() if isinstance(value, str) else value


def _add_plain_architecture(facts: Facts, architecture: Mapping[str, Any]) -> None:
    table = section("words")["architecture_keys"]
    _add_projections(facts, architecture)
    for key, value in architecture.items():
        fact = table.get(key)
        if fact is None or isinstance(value, list | Mapping) or value is None or value is False:
            continue
        if fact in FACTS:
            facts[fact] = value
    for key in ("model", "impl", "_name_or_path"):
        if isinstance(architecture.get(key), str):
            _apply_model_name(facts, architecture[key])


def _add_projections(facts: Facts, architecture: Mapping[str, Any]) -> None:
    """Keep the worst-dividing sides of projections that a question lists, such as ``kv_a_proj: [7168, 576]``."""
    sides = [size for value in architecture.values() if isinstance(value, list) and len(value) == 2 for size in value]
    sizes = [size for size in sides if isinstance(size, int) and not isinstance(size, bool) and size > 0]
    if sizes:
        facts["projection_rows"] = min(sizes, key=lambda size: (size & -size, size))


@lru_cache(maxsize=1)
def _model_rules() -> tuple[tuple[re.Pattern[str], dict[str, Scalar]], ...]:
    words = section("words")
    return tuple((re.compile(rule["match"]), dict(rule["set"])) for rule in words["models"])


def _apply_model_name(facts: Facts, name: str) -> None:
    lowered = name.lower()[:300]
    for pattern, values in _model_rules():
        if pattern.search(lowered):
            for key, value in values.items():
                facts.setdefault(key, value)


@lru_cache(maxsize=64)
def settled_by_scheme(scheme: str) -> Mapping[str, Scalar]:
    """Return the facts that every checkpoint of a scheme has (one allowed value in all of its rules)."""
    rules = [tests for name, tests in _scheme_rules() if name == scheme]
    settled: Facts = {}
    for fact in {name for tests in rules for name in tests}:
        values = {value for tests in rules for value in (tests[fact].values if fact in tests else ()) or ()}
        if len(values) == 1 and all(fact in tests for tests in rules):
            settled[fact] = next(iter(values))
    return settled
