"""Converting from the hub, against a local HTTP server: one shard at a time, and the same bytes as from a folder."""

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quantlab
from tests.integration.test_hub import Hub
from tests.tiny_checkpoint import file_bytes, write_tiny


@pytest.fixture
def source(tmp_path):
    return write_tiny(tmp_path / "in", layers=3, shards=4)


@pytest.fixture
def hub(source, tmp_path):
    """A hub that notes which shards lie on the client's disk whenever another one is asked for."""

    class TinyHub(Hub):
        content = file_bytes(source)
        served = {}  # noqa: RUF012
        log = []  # noqa: RUF012
        present = []  # noqa: RUF012
        fails_after = None

        def file(self, repository, revision, name, *, send):
            if send and name.endswith(".safetensors") and not self.headers.get("range"):
                folder = tmp_path / ".out.quantlab-download"
                self.present.append([path.name for path in folder.glob("*.safetensors")])
                if self.fails_after is not None and len(self.present) > self.fails_after:
                    self.fail(404, "EntryNotFound")
                    return
            super().file(repository, revision, name, send=send)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), TinyHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    TinyHub.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield TinyHub
    server.shutdown()
    server.server_close()


def convert(hub, tmp_path, *options):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "quantlab", "convert", "owner/model", str(tmp_path / "out"), "--to", "fp8"]
    return subprocess.run(
        [*command, "--format", "json", *options], capture_output=True, text=True, check=False, timeout=120,
        env={**kept, **settings, "NO_PROXY": "*"}, cwd=Path.cwd(),
    )  # fmt: skip


def weights(folder):
    return {name: content for name, content in file_bytes(folder).items() if name != "quantlab.json"}


def test_one_shard_at_a_time_gives_the_bytes_of_a_local_conversion(hub, source, tmp_path):
    done = convert(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    quantlab.convert(source, tmp_path / "local", "fp8")
    assert weights(tmp_path / "out") == weights(tmp_path / "local")
    assert json.loads((tmp_path / "out" / "quantlab.json").read_text())["source"]["name"].startswith("owner/model@")
    assert len(hub.present) == 8  # each shard once to convert and once for the proof
    assert max(map(len, hub.present)) <= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "in", "local", "out"]


def test_a_connection_that_breaks_is_resumed(hub, source, tmp_path):
    hub.fails_after = 2
    broken = convert(hub, tmp_path, "--verify", "none", "--threads", "1")
    assert broken.returncode == 2
    assert "could not be downloaded" in broken.stderr
    assert "--resume" in broken.stderr
    assert not (tmp_path / "out").exists()
    hub.fails_after, hub.present[:] = None, []
    done = convert(hub, tmp_path, "--verify", "none", "--resume")
    assert done.returncode == 0, done.stderr
    assert 0 < len(hub.present) < 4
    quantlab.convert(source, tmp_path / "local", "fp8")
    assert weights(tmp_path / "out") == weights(tmp_path / "local")
