"""Text: two built-in parts that share nothing, and every source a user may name."""

import hashlib
import json
import subprocess
import sys

import pytest

from quantlab.errors import UsageError
from quantlab.text import builtin, read


def paragraphs(text):
    return {" ".join(p.split()) for p in text.content.split("\n\n") if p.strip()}


def test_calibration_and_evaluation_share_no_paragraph_and_are_both_long():
    calibration, evaluation = builtin("calibration"), builtin("evaluation")
    assert not paragraphs(calibration) & paragraphs(evaluation)
    assert min(len(calibration.content), len(evaluation.content)) > 150_000
    assert calibration.sha256 == hashlib.sha256(calibration.content.encode()).hexdigest() != evaluation.sha256


def test_the_part_is_chosen_by_purpose():
    assert read("builtin", part="evaluation") == builtin("evaluation")
    assert read("builtin") == builtin("calibration")


def test_reading_text_imports_no_torch():
    code = "import sys; from quantlab.text import builtin; builtin('evaluation'); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_file_is_read_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    assert read(str(tmp_path / "a.txt")).content == "one\n\ntwo"


def test_json_lines_hold_texts_and_conversations(tmp_path):
    file = tmp_path / "a.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    lines = [{"text": "plain"}, {"messages": chat}, {"conversations": shared}, "bare"]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    text = read(str(file))
    assert text.documents == ("plain", "user: hi\nassistant: ho", "user: hi\nassistant: ho", "bare")
    assert [list(c) for c in text.chats] == [chat, chat]


def test_a_folder_is_all_its_texts_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("B")
    (tmp_path / "a.json").write_text(json.dumps([{"text": "A1"}, {"content": "A2"}]))
    (tmp_path / "sub" / "c.md").write_text("C")
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe")
    assert read(str(tmp_path)).documents == ("A1", "A2", "B", "C")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "x"}\n{broken', "line 2 is not JSON"),
        ("a.jsonl", '{"label": 3}', "line 1 has no text"),
        ("a.jsonl", '{"messages": [{"role": 1}]}', "a message needs"),
        ("a.txt", "", "holds no text"),
        ("a.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        read(str(tmp_path / name))


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="UTF-8"):
        read(str(tmp_path / "a.txt"))
    with pytest.raises(UsageError, match="there is no text"):
        read(str(tmp_path / "b.txt"))
    with pytest.raises(UsageError, match="no part"):
        builtin("training")
