"""Results side by side: what is comparable, what is said, and a page that needs no network."""

import json
import re
from html.parser import HTMLParser

import pytest

import quantlab
from quantlab.cli import main
from quantlab.errors import UsageError
from quantlab.evaluation.comparison import compare
from quantlab.evaluation.result_row import describe_scheme, weights_hash
from quantlab.report.comparison_html import comparison_html
from quantlab.report.comparison_text import comparison_text


def result(name, perplexity, **changes):
    content = {
        "checkpoint": {
            "path": f"models/{name}",
            "format": "dense" if name == "original" else "compressed-tensors/float-quantized",
            "scheme": {} if name == "original" else {"weights": {"bits": 8, "type": "float", "granularity": "channel"}},
            "bytes": 269_000_000 if name == "original" else 163_000_000,
            "sha256": {"config.json": "c0", "model.safetensors": f"feed{name}"},
        },
        "engine": "transformers",
        "environment": {"gpu": "cpu-x86_64"},
        "load": {"ok": True, "modules": {"Linear": 211}, "kernels": {}, "error": None},
        "probe": {"by_layer": [{"layer": "model.layers.0.mlp.up_proj", "relative_error": 0.002, "allowed": 0.01}]},
        "perplexity": {"value": perplexity, "standard_error": 0.4, "tokens": 8192, "window": 1024, "stride": 1024,
                       "text": "builtin", "text_sha256": "aa", "tokenizer_sha256": "t0"},
        "divergence": {"kl_mean": 0.02, "kl_p99": 0.3, "top1_agreement": 0.93},
        "speed": [
            {"batch": batch, "prompt_tokens": 128, "new_tokens": 16, "prefill_ms": 100.0 * batch,
             "decode_ms_per_token": 50.0, "decode_tokens_per_second": 20.0 * batch, "bandwidth_fraction": 0.2}
            for batch in (1, 8)
        ],
        "memory": {"cpu": {"weights_bytes": 160_000_000, "peak_bytes": 900_000_000}},
        "verdict": {"ok": True, "damaged": False, "quality": "good", "failures": [], "warnings": []},
    }  # fmt: skip
    return {**content, **changes}


def test_perplexity_is_set_against_the_first_result():
    first, second = compare([result("original", 16.0), result("fp8", 16.4)]).rows
    assert first.perplexity_change is None
    assert second.perplexity_change == pytest.approx(0.025)
    assert (second.bytes_on_disk, second.weights_sha256, second.peak_bytes) == (163_000_000, "feedfp8", 900_000_000)


@pytest.mark.parametrize("key", ["text_sha256", "window", "stride", "tokens", "tokenizer_sha256"])
def test_other_texts_windows_or_tokenizers_are_never_compared(key):
    other = result("fp8", 9.0)
    other["perplexity"] = {**other["perplexity"], key: "99"}
    comparison = compare([result("original", 16.0), other])
    assert comparison.rows[1].perplexity_change is None
    assert not comparison.rows[1].comparable
    assert "fp8 is not compared with original" in comparison.notes[0]
    text = comparison_text(comparison)
    assert "not comparable" in text
    assert "9.00" not in text
    assert ">9.00" not in comparison_html(comparison)


def test_memory_on_a_gpu_machine_is_the_gpus():
    memory = {"cuda:0": {"peak_bytes": 20}, "cuda:1": {"peak_bytes": 22}, "cpu": {"peak_bytes": 1000}}
    (row,) = compare([result("fp8", 16.0, memory=memory)]).rows
    assert row.peak_bytes == 42


def test_a_result_that_did_not_load_keeps_its_place_and_its_words():
    broken = {"checkpoint": {"path": "models/broken"}, "load": {"ok": False, "error": "KeyError: weight_scale"},
              "verdict": {"ok": False, "damaged": True, "failures": [], "warnings": []}}  # fmt: skip
    text = comparison_text(compare([result("original", 16.0), broken]))
    assert "does not load" in text
    assert "broken: failure: KeyError: weight_scale" in text


def test_same_folder_names_are_told_apart_by_their_parents():
    left, right = result("a", 1.0), result("a", 2.0)
    left["checkpoint"] = {**left["checkpoint"], "path": "x/fp8"}
    right["checkpoint"] = {**right["checkpoint"], "path": "y/fp8"}
    assert [row.name for row in compare([left, right]).rows] == ["x/fp8", "y/fp8"]


def test_schemes_and_hashes_in_words():
    assert describe_scheme({}) == "16 bit"
    group = {"weights": {"bits": 4, "type": "int", "granularity": "group", "group_size": 64}, "mixed": True}
    assert describe_scheme(group) == "int4 group 64 (mixed)"
    assert (
        describe_scheme({"weights": {"bits": 4, "type": "nf4", "granularity": "group", "group_size": 64}})
        == "nf4 group 64"
    )
    block = {"weights": {"bits": 8, "type": "float", "granularity": "block", "group_size": [128, 128]}}
    assert describe_scheme(block) == "float8 block 128x128"
    shards = {"model-1.safetensors": "a", "model-2.safetensors": "b"}
    assert (
        weights_hash({**shards, "config.json": "c"})
        == weights_hash(shards)
        != weights_hash({**shards, "model-2.safetensors": "x"})
    )


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.loads = []
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [
            value for key, value in attributes if key in {"src", "srcset"} or (tag == "link" and key == "href")
        ]


def test_the_page_holds_its_plots_and_loads_nothing():
    rows = [result("original", 16.0), result("<fp8 & co>", 16.4)]
    page = comparison_html(compare(rows))
    parser = _Page()
    parser.feed(page)
    assert parser.tags.count("svg") == 5
    assert parser.loads == []
    assert not re.search(r"@import|url\(\s*['\"]?https?:", page)
    assert "<fp8" not in page
    assert page == comparison_html(compare(rows))


def test_the_command_writes_all_three_and_its_json_is_the_api_s(tmp_path, capsys):
    files = []
    for name, value in (("original", 16.0), ("fp8", 16.4)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(result(name, value)))
    words = ["compare", *map(str, files), "--html", str(tmp_path / "c.html"), "--output", str(tmp_path / "c.json")]
    assert main([*words, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "c.json").read_text())
    assert printed == json.loads(json.dumps(quantlab.compare(files).to_dict()))
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")


def test_a_failed_verdict_is_exit_one(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(result("bad", 1e6, verdict={"ok": False, "damaged": True, "failures": ["zero points"]})))
    assert main(["compare", str(file)]) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"checkpoint": 3}'])
def test_a_file_that_is_no_result_is_one_clear_error(tmp_path, text, capsys):
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["compare", str(file)]) == 2
    assert "x.json" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "none.json")]) == 2
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([])
