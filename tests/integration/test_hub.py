"""Hub checkpoints against a local HTTP server: headers only, pinned revisions, gates, tokens, offline."""

import http.server
import json
import os
import subprocess
import sys
import threading
from typing import ClassVar

import pytest

from tests.unit.made_checkpoints import fp8_blocks, safetensors_bytes

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = ("model-1.safetensors", "model-2.safetensors")


def files():
    config, tensors = fp8_blocks()
    names = sorted(tensors)
    shards = dict(zip(NAMES, ({n: tensors[n] for n in names[:4]}, {n: tensors[n] for n in names[4:]}), strict=True))
    # A shard that is far larger than what may be fetched of it.
    shards[NAMES[1]]["model.big.table"] = ("U8", [2_000_000], bytes(2_000_000))
    index = {name: file for file, held in shards.items() for name in held}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": index}).encode(),
        **{file: safetensors_bytes(held) for file, held in shards.items()},
        "README.md": b"# model",
    }


class Hub(http.server.BaseHTTPRequestHandler):
    """The few routes of the hub that reading a checkpoint takes."""

    content = files()
    served: ClassVar[dict] = {}
    log: ClassVar[list] = []

    def do_HEAD(self):
        self.respond(send=False)

    def do_GET(self):
        self.respond(send=True)

    def respond(self, *, send):
        type(self).log.append((self.command, self.path))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.information("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif len(parts) >= 5 and parts[2] == "resolve":
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), send=send)
        else:
            self.fail(404, "EntryNotFound")

    def allowed(self, repository, revision):
        if repository == "owner/gated" and self.headers.get("authorization") != "Bearer hf_secret":
            self.fail(403, "GatedRepo")
        elif repository not in {"owner/model", "owner/gated"}:
            self.fail(401, "RepoNotFound")
        elif revision not in {"main", "v1", COMMIT}:
            self.fail(404, "RevisionNotFound")
        else:
            return True
        return False

    def fail(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("content-length", "0")
        self.end_headers()

    def information(self, repository, revision):
        if not self.allowed(repository, revision):
            return
        siblings = [{"rfilename": name, "size": len(content)} for name, content in self.content.items()]
        body = json.dumps({"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, repository, revision, name, *, send):
        if not self.allowed(repository, revision):
            return
        content = self.content.get(name)
        if content is None:
            self.fail(404, "EntryNotFound")
            return
        begin, end = 0, len(content) - 1
        asked = self.headers.get("range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or end), end)
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{name}-etag"')
        self.send_header("accept-ranges", "bytes")
        self.send_header("content-length", str(end - begin + 1))
        if asked:
            self.send_header("content-range", f"bytes {begin}-{end}/{len(content)}")
        self.end_headers()
        if send:
            type(self).served[name] = type(self).served.get(name, 0) + end - begin + 1
            self.wfile.write(content[begin : end + 1])

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def inspect(endpoint, tmp_path):
    """Run the command with its own cache; the hub's constants are read at import, hence a process of its own."""

    def run(*arguments, **environment):
        settings = {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HF_", "HUGGING")) and "proxy" not in key.lower()
        }
        done = subprocess.run(
            [sys.executable, "-m", "quantlab", "inspect", *arguments, "--format", "json"],
            capture_output=True, text=True, check=False, env={**kept, **settings, **environment}, timeout=60,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done, json.loads(done.stdout) if done.stdout else None

    return run


def test_only_configs_and_headers_are_fetched(inspect):
    Hub.served.clear()
    done, facts = inspect("owner/model")
    assert done.returncode == 0, done.stderr
    assert (facts["path"], facts["format"]) == ("owner/model", "fp8")
    assert facts["scheme"]["weights"]["group_size"] == [32, 32]
    assert facts["bytes"]["codes"] == 64 * 64 + 64 * 128
    assert 0 < Hub.served[NAMES[1]] <= 100_001, "a range of the shard, not the shard"
    assert "README.md" not in Hub.served


@pytest.mark.parametrize("pinned", [("owner/model", "--revision", "v1"), (f"owner/model@{COMMIT}",)])
def test_a_pinned_revision(inspect, pinned):
    Hub.log.clear()
    done, facts = inspect(*pinned)
    assert done.returncode == 0, done.stderr
    assert facts["format"] == "fp8"
    revision = "v1" if "v1" in pinned else COMMIT
    assert any(path.startswith(f"/api/models/owner/model/revision/{revision}") for _, path in Hub.log)


def test_a_revision_that_is_not_there(inspect):
    done, _ = inspect("owner/model@nope")
    assert done.returncode == 2
    assert "no such revision" in done.stderr


def test_a_gated_repository_needs_a_token(inspect):
    done, _ = inspect("owner/gated")
    assert (done.returncode, "gated" in done.stderr, "hint:" in done.stderr) == (2, True, True)
    done, facts = inspect("owner/gated", HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    assert facts["format"] == "fp8"


def test_a_repository_that_is_not_there(inspect):
    done, _ = inspect("owner/nothing")
    assert done.returncode == 2
    assert "no model owner/nothing" in done.stderr


def test_offline_the_cache_answers_with_its_configs(inspect):
    assert inspect("owner/model")[0].returncode == 0
    Hub.log.clear()
    done, facts = inspect("owner/model", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert facts["format"] == "fp8"
    assert Hub.log == []


def test_without_a_connection_the_cache_answers(inspect):
    assert inspect("owner/model")[0].returncode == 0
    done, facts = inspect("owner/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert facts["format"] == "fp8"


def test_offline_without_a_cache_is_one_error(inspect):
    done, _ = inspect("owner/model", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert "out of reach" in done.stderr
    assert "hint:" in done.stderr


def test_no_server_is_one_error(inspect):
    done, _ = inspect("owner/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2, done.stderr
    assert "out of reach" in done.stderr
