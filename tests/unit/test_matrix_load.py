"""Statements that cannot be right do not load; lint finds what is doubtful."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from quantlab.errors import DataError
from quantlab.matrix.data import data_folder
from quantlab.matrix.lint import RULES, run_lint
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.load import load

GOOD = {
    "id": "a-claim",
    "when": {"gpus": ["sm_90"], "scheme": "w4a16"},
    "outcome": "works",
    "mode": "weight-only",
    "reason": "because",
    "sources": ["a-source"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the data with one small support file."""
    copy = tmp_path / "matrix"
    shutil.copytree(data_folder(), copy)
    shutil.rmtree(copy / "support")
    (copy / "support").mkdir()
    with (copy / "sources.yaml").open("a", encoding="utf-8") as file:
        file.write("\na-source: {title: a source, kind: page, url: 'https://example.org'}\n")
    return copy


def write(folder: Path, *statements: dict[str, object]) -> Path:
    content = {"engine": "vllm", "statements": list(statements)}
    (folder / "support" / "vllm.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder


def changed(**keys: object) -> dict[str, object]:
    return {key: value for key, value in {**GOOD, **keys}.items() if value is not None}


def test_a_good_statement_loads(folder: Path) -> None:
    data = load(write(folder, GOOD))
    assert [item.id for item in data.statements] == ["a-claim"]
    assert data.statements[0].when.gpus == {"sm_90"}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (changed(sources=None), "no source"),
        (changed(sources=["nowhere"]), "nowhere"),
        (changed(outcome="maybe"), "outcome 'maybe'"),
        (changed(outcome="unknown"), "outcome 'unknown'"),
        (changed(mode="magic"), "mode 'magic'"),
        (changed(reason=None), "no reason"),
        (changed(engine="no-such-engine"), "unknown engine"),
        (changed(when={"gpus": ["sm_999"]}), "'sm_999'"),
        (changed(when={"colour": "red"}), "unknown fact 'colour'"),
        (changed(when={"bits": {"above": 3}}), "unknown condition"),
        (changed(when={"versions": {"vllm": ">=2,<1"}}), "no version lies in"),
        (changed(when={"operation": ["fly"]}), "unknown operation"),
        (changed(outcome="works-with-fallback", mode=None), "a fallback names its mode"),
        (changed(outcome="works-with-fallback", mode="native"), "a fallback names its mode"),
        (changed(colour="red"), "unknown keys"),
        (changed(divides=[{"dimension": "hidden_size"}]), "a division has"),
    ],
)
def test_a_bad_statement_does_not_load(folder: Path, statement: dict[str, object], said: str) -> None:
    with pytest.raises(DataError) as error:
        load(write(folder, statement))
    assert said in error.value.message
    assert "support/vllm.yaml" in error.value.message


def test_two_statements_of_equal_rank_may_not_disagree(folder: Path) -> None:
    other = changed(id="another-claim", outcome="fails", mode=None)
    with pytest.raises(DataError, match="disagree"):
        load(write(folder, GOOD, other))


@pytest.mark.parametrize(
    "when",
    [
        {"gpus": ["sm_80"], "scheme": "w4a16"},
        {"gpus": ["sm_90"], "scheme": "w8a16"},
        {"gpus": ["sm_90"], "scheme": "w4a16", "operation": ["save"]},
        {"gpus": ["sm_90"], "scheme": "w4a16", "moe": True},
    ],
)
def test_they_may_where_they_do_not_meet_or_one_is_narrower(folder: Path, when: dict[str, object]) -> None:
    other = changed(id="another-claim", outcome="fails", mode=None, when=when)
    assert len(load(write(folder, GOOD, other)).statements) == 2


def test_versions_keep_statements_apart(folder: Path) -> None:
    old = changed(when={"gpus": ["sm_90"], "versions": {"vllm": "<0.9"}}, id="old", outcome="fails", mode=None)
    new = changed(when={"gpus": ["sm_90"], "versions": {"vllm": ">=0.9"}}, id="new")
    assert len(load(write(folder, old, new)).statements) == 2


def test_the_same_id_twice_does_not_load(folder: Path) -> None:
    with pytest.raises(DataError, match="occurs twice"):
        load(write(folder, GOOD, GOOD))


def test_the_committed_data_is_clean() -> None:
    assert [finding for finding in run_lint() if finding.severity == "error"] == []


def findings(folder: Path, rule: str) -> list[str]:
    return [item.message for item in RULES[rule](Subject(folder, load(folder)))]


def test_lint_prose(folder: Path) -> None:
    found = findings(write(folder, changed(id="Not_Kebab", reason="Because it is so.")), "prose")
    assert len(found) == 2


def test_lint_unreachable(folder: Path) -> None:
    hidden = changed(id="hidden", when={"gpus": ["sm_90"], "scheme": "w4a16", "moe": True})
    above = changed(id="above", precedence=1, outcome="fails", mode=None)
    assert "hidden is hidden by above" in findings(write(folder, hidden, above), "unreachable")[0]


def test_lint_sources(folder: Path) -> None:
    with (folder / "sources.yaml").open("a", encoding="utf-8") as file:
        file.write("nameless: {kind: page}\n")
    assert any("nameless needs a title" in message for message in findings(write(folder, GOOD), "sources"))


def test_lint_releases(folder: Path) -> None:
    (folder / "engines" / "vllm.yaml").write_text(
        'title: vLLM\npackage: vllm\nreleases: [["0.9", "2025-06-01"], ["0.8", "2025-05-01"]]\n'
        'pulls: [[9, "2025-01-01"], [8, "2025-02-01"]]\n',
        encoding="utf-8",
    )
    assert len(findings(write(folder, GOOD), "releases")) == 2


def test_lint_gpus(folder: Path) -> None:
    path = folder / "gpu-groups.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "  dream: sm_999\n", encoding="utf-8")
    assert findings(write(folder, GOOD), "gpus") == ["alias 'dream' leads to sm_999, which is in no backend"]


def test_lint_methods(folder: Path) -> None:
    (folder / "methods" / "dream.yaml").write_text("formats: [nothing]\ndefaults: {colour: red}\n", encoding="utf-8")
    assert len(findings(write(folder, GOOD), "methods")) == 3


def test_lint_words(folder: Path) -> None:
    path = folder / "words.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("phrases:\n", "phrases:\n  - {match: '(', set: {colour: red}}\n"), encoding="utf-8")
    assert len(findings(write(folder, GOOD), "words")) == 2


def test_lint_evidence(folder: Path) -> None:
    (folder / "evidence").mkdir(exist_ok=True)
    (folder / "evidence" / "broken.json").write_text("[]", encoding="utf-8")
    assert len(findings(write(folder, GOOD), "evidence")) == 1


def test_lint_schema(folder: Path) -> None:
    (folder / "schema" / "statements.json").write_text("{}", encoding="utf-8")
    assert "is not the schema" in findings(write(folder, GOOD), "schema")[0]


def test_data_that_does_not_load_is_one_finding(folder: Path) -> None:
    found = run_lint(write(folder, changed(sources=None)))
    assert [(item.rule, item.severity) for item in found] == [("load", "error")]
