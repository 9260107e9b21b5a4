"""`lensd plan` as it is typed: its document, its exit status, and what a running engine wastes."""

import contextlib
import io
import json
import os

import pytest
from lensd_collectors.rows import EngineSample, RequestRow
from pretending import pretending
from seeded import T0

from lensd.cli.main import run
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore

SEVEN = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 4096,
    "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "float16",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model in it, and no configuration, daemon or store of ours anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LENSD_URL", raising=False)
    (tmp_path / "lensd.toml").write_text('[serve]\nstore = "no-store"\napi = "127.0.0.1:1"\n')
    (tmp_path / "7b").mkdir()
    (tmp_path / "7b" / "config.json").write_text(json.dumps(SEVEN))
    return tmp_path


def call(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["plan", *words])
    return status, out.getvalue(), err.getvalue()


def document(*words):
    status, out, _ = call(*words, "--json")
    return status, json.loads(out)


def test_the_documents_figures(folder):
    status, told = document("7b", "--gpu", "80GB", "--context", "4096", "--concurrency", "8")
    assert status == 0
    assert (told["kv_bytes_per_token"], told["kv_bytes_per_request"], told["kv_bytes_total"]) == (512 << 10, 2 << 30, 16 << 30)
    assert (told["weights_bytes"], told["fits"], told["recommended_concurrency"]) == (
        2 * 6_738_415_616,
        True,
        int(told["max_concurrency"] * 0.75),
    )
    assert {"kv_budget_bytes", "max_context", "timeouts", "flags"} <= told.keys()


def test_the_exit_status_says_whether_it_fits(folder):
    assert call("7b", "--gpu", "24GiB", "--context", "2048")[0] == 0
    status, out, err = call("7b", "--gpu", "80GB", "--context", "1048576")
    assert (status, err) == (3, "")
    assert "never: one request of 1,048,576 tokens needs 512 GiB" in out
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64}))
    assert call("small", "--gpu", "24GiB", "--context", "2048")[0] == 5  # without the weights it cannot be told


def test_nothing_measured_is_said_in_one_line(folder):
    status, out, err = call("7b", "--gpu", "24GiB")
    assert (status, out) == (2, "")
    assert err == "lensd: give --context: not measured: 0 settled requests say their tokens, 30 are needed\n"


@pytest.mark.parametrize(
    "words",
    [
        ("7b",),
        ("--gpu", "L4"),
        ("7b", "--gpu", "L4", "--context", "many"),
        ("7b", "--gpu", "L4", "--context", "-1"),
        ("7b", "--gpu", "L4", "--context", "10", "--utilization", "nan"),
        ("7b", "--gpu", "L4", "--context", "10", "--from-engine", "nonsense://x"),
        ("nowhere", "--gpu", "L4", "--context", "10"),
        (".", "--gpu", "L4", "--context", "10"),
        ("lensd.toml", "--gpu", "L4", "--context", "10"),
        ("~nobody-here/7b", "--gpu", "L4", "--context", "10"),
        ("x" * 5000, "--gpu", "L4", "--context", "10"),
        ("7b", "--gpu", "9" * 400 + "GiB", "--context", "10"),
    ],
)
def test_nonsense_is_one_line_and_two(folder, words):
    status, out, err = call(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_weights_that_were_not_fetched_can_be_given(folder, name):
    (folder / "7b" / name).write_text(POINTER)
    status, out, err = call("7b", "--gpu", "80GB", "--context", "4096")
    assert (status, out, err.count("\n"), "or give --parameters" in err) == (2, "", 1, True)
    for words in (("--parameters", "7B"), ("--weights", "14GB")):
        status, told = document("7b", "--gpu", "80GB", "--context", "4096", *words)
        assert (status, told["weights_bytes"]) == (0, 14 * 10**9)


def test_a_configuration_that_was_not_fetched_is_called_so(folder):
    (folder / "config.json").write_text(POINTER)
    assert "config.json is a pointer to a file that was not fetched" in call(".", "--gpu", "L4", "--context", "10")[2]


def test_a_name_in_a_configuration_stays_in_its_line(folder):
    (folder / "7b" / "config.json").write_text(json.dumps(SEVEN | {"_name_or_path": "a\nb\x1b[31m"}))
    out = call("7b", "--gpu", "80GB", "--context", "4096")[1]
    assert out.startswith("a?b?[31m on one card 80GB: ")


def test_a_configuration_from_a_pipe(folder):
    read, write = os.pipe()
    os.write(write, json.dumps(SEVEN).encode())
    os.close(write)
    status, out, _ = call(f"/dev/fd/{read}", "--gpu", "80GB", "--context", "4096")
    os.close(read)
    assert (status, out.startswith("the model on one card 80GB: ")) == (0, True)


def busy(folder, engine="e0", model="tiny-llama", tokens=128, running=2.0):
    store = FolderStore(folder / "no-store")
    rows = [
        RequestRow(
            request_key=tokens * 100 + n, revision=1, started_at=T0 + n, settled=True, outcome="ok", prompt_tokens=100,
            completion_tokens=tokens - 100, engine=engine, model=model,
        )
        for n in range(40)
    ]  # fmt: skip
    samples = [EngineSample(seen_at=T0 + n, engine=engine, model=model, running=running) for n in range(40)]
    store.append(batch_of({"requests": rows, "engine_samples": samples}))
    store.close()


def test_what_a_running_engine_wastes(folder):
    busy(folder)
    with pretending(folder) as engine:
        status, told = document("--from-engine", engine.url)
        assert status == 0
        assert (told["engine"]["tokens"], told["engine"]["block_size"], told["measured"]["tokens_p99"]) == (2_097_152, 128, 128)
        assert (told["used_tokens"], told["idle_tokens"]) == (256, 2_096_896)
        assert told["idle_bytes"] == round((1 << 30) * (1 - 256 / 2_097_152))
        assert set(engine.asked) <= {"GET /metrics", "GET /v1/models", "GET /version", "/metrics", "/v1/models", "/version"}
        status, out, _ = call("--from-engine", engine.url)
        assert (status, "2,096,896 tokens of KV cache (100.0%), 1,023.88 MiB" in out) == (0, True)


def test_what_another_engine_uses_is_not_this_ones(folder):
    busy(folder)
    busy(folder, "e1", "another", tokens=5000, running=50.0)
    with pretending(folder) as engine:
        assert document("--from-engine", engine.url)[1]["used_tokens"] == 256  # by its model
        (folder / "lensd.toml").write_text(
            f'[serve]\nstore = "no-store"\napi = "127.0.0.1:1"\n[[agent.engines]]\nname = "e1"\nurl = "{engine.url}"\n'
        )
        assert document("--from-engine", engine.url)[1]["measured"]["tokens_p99"] == 5000  # by the name that it is watched under


def test_an_engine_with_nothing_measured_is_not_called_wasteful(folder):
    with pretending(folder) as engine:
        status, out, _ = call("--from-engine", engine.url)
    assert status == 5
    assert "could not tell" in out


def test_no_engine_is_said_in_one_line(folder):
    status, out, err = call("--from-engine", "http://127.0.0.1:1")
    assert (status, out) == (5, "")
    assert err.startswith("lensd: no engine at http://127.0.0.1:1")
