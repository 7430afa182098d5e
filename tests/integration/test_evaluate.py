"""The evaluator end to end on tiny models: command, API, quality figures, evidence; a worker's end is a result."""

import io
import json
import math
import tarfile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import quantlab
import quantlab.matrix.question
from quantlab.cli import main
from quantlab.errors import UsageError
from quantlab.evaluation import evidence, scoring, windows
from quantlab.evaluation.divergence import Comparer
from quantlab.evaluation.job import SpeedOptions
from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.reference_cache import TOP, Recorder, Reference
from quantlab.matrix.evidence import parse_evidence, weigh
from quantlab.matrix.model import Verdict
from quantlab.matrix.query import Query
from quantlab.worker import Limits
from tests import planted

NO_SPEED = SpeedOptions(batch=())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return planted.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(planted.TEXT * 4)
    return file


@pytest.fixture(scope="module")
def model(folders):
    return AutoModelForCausalLM.from_pretrained(folders.llama, dtype=torch.float32).eval()


def token_ids(folders, count):
    tokenizer = AutoTokenizer.from_pretrained(folders.llama)
    return tokenizer(planted.TEXT * 20, add_special_tokens=False)["input_ids"][:count]


def test_perplexity_is_what_a_plain_loop_gives(folders, model):
    parts = windows.cut(token_ids(folders, 200), window=64, stride=64, beginning=None)
    losses = []
    for part in parts:
        ids = torch.tensor([part.ids])
        with torch.no_grad():
            logs = model(ids).logits[0, :-1].float().log_softmax(-1)
        losses += (-logs.gather(1, ids[0, 1:, None]))[part.first_scored - 1 :, 0].tolist()
    value, error = scoring.score(LanguageModel(model), parts, batch=2).perplexity()
    assert value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert 0 < error < value


def test_sliding_windows_score_each_token_once_and_leave_out_an_incomplete_step(folders):
    ids = token_ids(folders, 150)
    parts = windows.cut(ids, window=64, stride=16, beginning=None)
    assert [part.scored for part in parts] == [63, 16, 16, 16, 16, 16]
    scored = [token for part in parts for token in part.ids[part.first_scored :]]
    assert scored == list(ids[1:144])


def test_divergence_from_itself_is_nothing_and_bounds_hold(folders, model):
    parts = windows.cut(token_ids(folders, 128), window=64, stride=64, beginning=None)
    recorder = Recorder()
    scoring.score(LanguageModel(model), parts, batch=1, onlookers=[recorder])
    reference = Reference.of(recorder, {"perplexity": 1.0})
    same = Comparer(reference)
    scoring.score(LanguageModel(model), parts, batch=1, onlookers=[same])
    found = same.result(None)
    assert found.kl_mean < 1e-6
    assert found.top1_agreement == 1.0
    noise = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4 * TOP, generator=noise) * 3
    other = logits + torch.randn(logits.shape, generator=noise)
    exact = torch.nn.functional.kl_div(other.log_softmax(-1), logits.log_softmax(-1), log_target=True, reduction="none")
    recorder, compared = Recorder(), None
    recorder.see(logits, torch.logsumexp(logits, -1))
    compared = Comparer(Reference.of(recorder, {}))
    compared.see(other.clone(), torch.logsumexp(other, -1))
    bounds = compared.result(None)
    truth = float(exact.sum(-1).mean())
    assert bounds.kl_mean <= truth + 1e-4 <= bounds.kl_mean + bounds.kl_error_bound + 2e-4


def test_command_and_api_give_the_same_result(folders, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("QUANTLAB_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "out.json"
    words = ["evaluate", str(folders.llama), "--text", str(text), "--tokens", "256", "--window", "64",
             "--device", "cpu", "--speed-shape", "2x16x4", "--no-generate", "--format", "json",
             "--output", str(file)]  # fmt: skip
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(file.read_text())
    assert [(cell["batch"], cell["prompt_tokens"], cell["new_tokens"]) for cell in printed["speed"]] == [(2, 16, 4)]
    assert printed["load"]["ok"]
    assert printed["load"]["missing_keys"] == []
    result = quantlab.evaluate(
        folders.llama,
        text=str(text),
        tokens=256,
        window=64,
        generate=False,
        speed=SpeedOptions(shapes=((2, 16, 4),)),
    )
    content = json.loads(json.dumps(result.to_dict()))
    assert content.keys() == printed.keys()
    assert content["perplexity"]["value"] == printed["perplexity"]["value"]


def test_a_candidate_is_judged_beside_an_original_that_is_measured_once(folders, text, tmp_path, monkeypatch):
    monkeypatch.setenv("QUANTLAB_CACHE", str(tmp_path))
    out = tmp_path / "w8a16"
    quantlab.convert(folders.llama, out, "w8a16")
    options = {
        "baseline": folders.llama,
        "text": str(text),
        "tokens": 256,
        "window": 64,
        "generate": False,
        "speed": NO_SPEED,
    }
    result = quantlab.evaluate(out, **options)
    assert result.verdict.ok, result.verdict
    assert result.divergence.kl_mean < 0.05
    assert result.reference.baseline_perplexity > 1
    assert result.probe.layers == result.probe.of > 0
    assert result.probe.against_baseline.ok
    (cached,) = (tmp_path / "quantlab" / "reference").glob("*.safetensors")
    stamp = cached.stat().st_mtime_ns
    again = quantlab.evaluate(out, **options)
    assert cached.stat().st_mtime_ns == stamp
    assert again.divergence == result.divergence


def test_a_worker_that_is_stopped_is_a_result(folders):
    late = quantlab.evaluate(folders.llama, text=None, limits=Limits(seconds=0.2), speed=NO_SPEED)
    assert not late.verdict.ok
    assert late.load.error == "timeout"
    assert late.worker["kind"] == "timeout"


@pytest.mark.parametrize("words", ["2x16", "0x16x4", "axbxc"])
def test_a_wrong_shape_is_one_clear_error(folders, words, capsys):
    assert main(["evaluate", str(folders.llama), "--speed-shape", words]) == 2
    assert "--speed-shape 8x512x32" in capsys.readouterr().err


def recorded(tmp_path, **changes):
    result = {
        "engine": "transformers", "date": "2026-12-01T00:00:00+00:00",
        "checkpoint": {"name": "x", "path": "/home/me/x", "format": "torchao", "scheme": {}},
        "environment": {"gpu": "sm_90", "cuda": "13.0", "torch": "2.11.0", "versions": {"transformers": "5.17.0"}},
        "load": {"ok": True}, "verdict": {"ok": True, "damaged": False, "quality": "good"}, **changes,
    }  # fmt: skip
    return evidence.record(result, tmp_path / "evidence")


def test_evidence_is_named_by_its_content_travels_and_holds_no_path(tmp_path):
    path = recorded(tmp_path)
    assert "/home/me" not in path.read_text()
    assert evidence.bundle(tmp_path / "b.tar.gz", tmp_path / "evidence") == 1
    assert evidence.import_bundle(tmp_path / "b.tar.gz", tmp_path / "other") == 1
    assert evidence.import_bundle(tmp_path / "b.tar.gz", tmp_path / "other") == 0
    assert (tmp_path / "other" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("name", "words"), [("../x.json", "no evidence"), (f"{'0' * 64}.json", "another hash")])
def test_a_bundle_that_was_tampered_with_is_refused(tmp_path, name, words):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    with pytest.raises(UsageError, match=words):
        evidence.import_bundle(tmp_path / "bad.tar.gz", tmp_path / "evidence")
    assert not (tmp_path / "evidence").exists()


def test_evidence_verifies_or_disputes_a_verdict_for_its_version_only(tmp_path):
    good = parse_evidence(recorded(tmp_path))
    bad = parse_evidence(recorded(tmp_path, verdict={"ok": False, "damaged": True}))
    verdict = Verdict("works", "because", confidence="declared", engine="transformers", gpu="sm_90", sources=("s",))
    query = quantlab.matrix.question.read_question(
        {"method": "torchao", "engine": "transformers", "software": {"transformers": "5.17.0"}}
    )
    assert weigh(verdict, query, (good,)).confidence == "verified"
    assert weigh(verdict, query, (good, bad)).confidence == "disputed"
    newer = Query(query.facts, "transformers", ("sm_90",))
    later = weigh(verdict, newer, (good,))
    assert later.confidence == "declared"
    assert "measured on transformers 5.17.0, not since" in later.reason


def test_a_sweep_converts_and_evaluates_for_real(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("QUANTLAB_CACHE", str(tmp_path / "cache"))
    plan = {
        "output": str(tmp_path / "out"),
        "models": {"tiny": {"path": str(folders.llama)}},
        "cells": [
            {"id": "fp8", "model": "tiny", "convert": {"to": "fp8"},
             "evaluate": {"text": "none", "no-generate": True, "speed-batch": "", "device": "cpu"}}
        ],
    }  # fmt: skip
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps(plan))
    assert main(["sweep", str(file)]) == 0
    result = json.loads((tmp_path / "out" / "results" / "fp8.json").read_text())
    assert result["probe"]["layers"] == result["probe"]["of"] > 0
    assert result["verdict"]["ok"]
    assert not (tmp_path / "out" / "checkpoints" / "fp8").exists()
