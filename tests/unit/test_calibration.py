"""Calibration: the same samples for the same seed, refused with the number needed where the text is too short."""

import json
import re

import pytest

from quantlab.errors import UsageError
from quantlab.quantizers.calibration import CalibrationPlan, calibrate, read_ids
from quantlab.text import Text


class Letters:
    """One token a character."""

    chat_template = "yes"

    def __call__(self, words, **options):
        return {"input_ids": [ord(letter) for letter in words]}

    def apply_chat_template(self, chat, *, tokenize):
        return "".join(f"<{m['role']}>{m['content']}" for m in chat)


def text(content="abcdefghijklmnopqrstuvwxyz" * 40, **more):
    return Text("a text", content, "hash", **more)


def test_windows_do_not_overlap_come_from_the_text_and_repeat_with_the_seed():
    plan = CalibrationPlan(samples=5, sequence_length=100, seed=3)
    first, again = calibrate(text(), Letters(), plan), calibrate(text(), Letters(), plan)
    assert first == again
    assert [len(sample) for sample in first.ids] == [100] * 5
    words = ["".join(map(chr, sample)) for sample in first.ids]
    starts = [text().content.index(w) for w in words]
    assert all(w in text().content for w in words)
    assert starts == [n % 26 for n in starts]
    other = calibrate(text(), Letters(), CalibrationPlan(samples=5, sequence_length=100, seed=4))
    assert other.sha256 != first.sha256


def test_ids_survive_their_file(tmp_path):
    samples = calibrate(text(), Letters(), CalibrationPlan(samples=2, sequence_length=16))
    assert read_ids(samples.write(tmp_path / "ids.json")) == [list(ids) for ids in samples.ids]
    assert json.loads(json.dumps(samples.summary()))["tokens"] == 32


def test_too_short_a_text_says_what_is_there_and_what_is_needed():
    with pytest.raises(UsageError, match=re.escape("gives 1040 tokens, 11 samples of 100 tokens need 1100")) as caught:
        calibrate(text(), Letters(), CalibrationPlan(samples=11, sequence_length=100))
    assert "--samples 10" in caught.value.hint


@pytest.mark.parametrize("plan", [CalibrationPlan(samples=0), CalibrationPlan(sequence_length=3)])
def test_no_calibration_at_all_is_refused(plan):
    with pytest.raises(UsageError, match="are no calibration"):
        calibrate(text(), Letters(), plan)


def test_conversations_are_samples_cut_at_the_length_and_short_ones_passed_over():
    chats = (*tuple(({"role": "user", "content": letter * 40},) for letter in "xy"), ({"role": "u", "content": "z"},))
    plan = CalibrationPlan(samples=2, sequence_length=20, chat_template=True)
    found = calibrate(text("-", chats=chats), Letters(), plan)
    assert ["".join(map(chr, ids)) for ids in found.ids] == ["<user>" + "x" * 14, "<user>" + "y" * 14]
    with pytest.raises(UsageError, match="holds 2 conversations"):
        calibrate(text("-", chats=chats), Letters(), CalibrationPlan(samples=3, sequence_length=20, chat_template=True))


def test_a_tokenizer_without_a_template_is_named():
    tokenizer = Letters()
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="no chat template"):
        calibrate(text(), tokenizer, CalibrationPlan(chat_template=True))
