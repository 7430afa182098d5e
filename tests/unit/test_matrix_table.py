"""The table says what a query says; its four forms carry the same facts."""

import json
import re
import shutil
from pathlib import Path

import pytest

from quantlab.cli import main
from quantlab.matrix.data import data_folder
from quantlab.matrix.difference import difference, state
from quantlab.matrix.load import load
from quantlab.matrix.query import Query, answer
from quantlab.matrix.subject import from_words
from quantlab.matrix.table import build_table
from quantlab.report.matrix_html import matrix_html
from quantlab.report.matrix_markdown import matrix_markdown
from quantlab.report.matrix_symbols import SYMBOLS, column_groups
from quantlab.report.matrix_text import matrix_text


@pytest.fixture(scope="module")
def table():
    return build_table(load(), engines=["vllm"], backends=["rocm"])


def test_a_cell_is_the_answer_to_its_query(table):
    for method in ("fp8", "gptq", "awq"):
        for gpu in ("gfx90a", "gfx942", "gfx1100"):
            verdict = answer(Query(from_words({"method": method}), "vllm", (gpu,)), load())
            cell = table.cell("vllm", method, gpu)
            assert (cell.outcome, cell.reason, cell.sources) == (verdict.outcome, verdict.reason, verdict.sources)


def test_fp8_on_amd_differs_by_gpu(table):
    assert table.cell("vllm", "fp8", "gfx942").outcome == "works"
    assert table.cell("vllm", "fp8", "gfx90a").outcome != "works"


def test_the_terminal_table_fits_and_needs_no_colour(table):
    text = matrix_text(table, width=80)
    rows = [line for line in text.splitlines() if not line.startswith("+ ")]  # the legend may wrap
    assert max(map(len, rows)) <= 80
    assert "\x1b" not in text
    assert text.isascii()


def test_every_gpu_stands_under_one_column_and_equal_neighbours_share_it(table):
    groups = column_groups(table, "vllm")
    assert [gpu for group in groups for gpu in group] == list(table.gpus)
    for group in groups:
        for method in table.methods:
            assert len({table.cell("vllm", method, gpu).outcome for gpu in group}) == 1


def symbols_by_row(lines, split):
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in map(split, lines)}


def test_markdown_text_and_json_agree(table):
    text_rows = re.findall(r"^(\S.*?)  +((?:[+~x!.]\d*\s*)+)$", matrix_text(table, width=200), re.MULTILINE)
    in_text = {name.strip(): [word[0] for word in rest.split()] for name, rest in text_rows}
    markdown = matrix_markdown(table, {})
    rows = [line.strip("|").split("|") for line in markdown.splitlines() if re.match(r"\|.*`[+~x!.]`", line)]
    in_markdown = {row[0].strip(): re.findall(r"`(.)`", "".join(row[1:])) for row in rows}
    assert in_text == in_markdown
    content = json.loads(json.dumps(table.to_dict()))
    first = [group[0] for group in column_groups(table, "vllm")]
    for method, symbols in in_text.items():
        told = {
            cell["gpu"]: cell["outcome"] for cell in content["cells"] if content["methods"][cell["method"]] == method
        }
        assert symbols == [SYMBOLS[told[gpu]] for gpu in first]


def test_html_tells_reasons_and_loads_nothing(table):
    page = matrix_html(table)
    assert "http" not in page
    assert page.count("<td") == sum(len(column_groups(table, "vllm")) for _ in table.rows("vllm"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "MI301X"], "MI300X"),
        (["--method", "gtpq"], "gptq"),
        (["--engine", "vlm"], "vllm"),
        (["--backend", "rocmm"], "rocm"),
        (["diff", "HEAD"], "takes 2 names"),
        (["diff", "/nowhere", "HEAD"], "/nowhere"),
        (["sources", "no-such-source"], "no-such-source"),
    ],
)
def test_unknown_names_are_errors_with_the_nearest(words, said, capsys):
    assert main(["matrix", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_statement_and_its_source_lead_to_each_other(capsys):
    assert main(["matrix", "sources", "vllm-awq-cuda", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    source = next(iter(found["sources"]))
    assert main(["matrix", "sources", source, "--format", "json"]) == 0
    back = json.loads(capsys.readouterr().out)
    assert "vllm-awq-cuda" in {item["id"] for item in back["statements"]}


def test_a_difference_names_statements_and_answers(tmp_path):
    changed = tmp_path / "matrix"
    shutil.copytree(data_folder(), changed)
    file = changed / "support" / "vllm" / "awq.yaml"
    text = file.read_text()
    before, after = text.index("  - id: vllm-awq-cuda"), text.index("  - id: vllm-awq-before-turing")
    file.write_text(text[:before] + text[after:])
    found = difference(data_folder(), changed)
    assert found.removed == ("vllm-awq-cuda",)
    assert found.added == found.changed == ()
    assert {(cell.engine, cell.method, cell.before) for cell in found.cells} >= {("vllm", "awq", "works")}
    assert difference(data_folder(), data_folder()).cells == ()


def test_a_folder_is_a_state(tmp_path):
    with state(str(data_folder())) as folder:
        assert folder == Path(data_folder()).resolve()
