"""What libraries leak into a checkpoint is taken out, and only that."""

import json

from quantlab.quantizers.cleaning import strip_leaks


def test_texts_and_temporary_paths_go_and_the_rest_stays(tmp_path):
    scratch = tmp_path / "scratch"
    config = {
        "model_type": "llama",
        "quantization_config": {
            "bits": 4,
            "dataset": ["secret text"],
            "tokenizer": None,
            "meta": {"offload_to_disk_path": "/somewhere", "quantizer": ["x:1"], "new": {"where": f"{scratch}/x"}},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "meta": {"offload_to_disk_path": "/x"}}))
    removed = strip_leaks(tmp_path, ("dataset", "tokenizer", "meta.offload_to_disk_path"), (scratch,))
    left = json.loads((tmp_path / "config.json").read_text())
    assert left == {
        "model_type": "llama",
        "quantization_config": {"bits": 4, "meta": {"quantizer": ["x:1"], "new": {}}},
    }
    assert json.loads((tmp_path / "quantize_config.json").read_text()) == {"bits": 4, "meta": {}}
    assert "config.json: dataset" in removed
    assert "quantize_config.json: meta.offload_to_disk_path" in removed
    assert any(where.endswith("meta.new.where") for where in removed)


def test_a_clean_file_is_not_touched(tmp_path):
    (tmp_path / "config.json").write_text('{"a":1}')
    assert strip_leaks(tmp_path, ("dataset",), (tmp_path / "scratch",)) == []
    assert (tmp_path / "config.json").read_text() == '{"a":1}'
