"""What each command prints, word for word: `tests/transcripts/*.txt`.

    $ LENSD_SERVE__API=x lensd config check     a command, with variables of its own before it
    exit 2
    | a line of stdout
    ! a line of stderr

`LENSD_TRANSCRIPTS=write pytest tests/lensd/cli/test_transcripts.py` writes them anew from the commands in them: read the diff.
Files named `daemon-*` run against a daemon's API, all others against the store's folder; `attach*` has engines at `<rung-0>` and so on.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from lensd_collectors.rows import EngineSample, RequestRow
from pretending import INSIDE, SENDS, SPANS, TRACED, pretending
from seeded import T0, TOKEN, fill_folder, served

from lensd.cli.main import run
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore

WRITE = os.environ.get("LENSD_TRANSCRIPTS") == "write"
FILES = sorted((ROOT / "tests" / "transcripts").glob("*.txt"))
CONFIG = """[serve]
store = "store"
api = "127.0.0.1:1"
token_file = "token"
[gateway]
keys_file = "keys.toml"
"""
REFUSED = 'HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n\r\n{"error":"Unauthorized"}'
MODEL = """{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
"intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}
"""
KEYS = f'[[keys]]\nid = "team-a"\nsha256 = "{"ab" * 32}"\nlast4 = "x7Qd"\nmodels = ["tiny-*", "*-chat"]\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    fill_folder(folder / "store")
    _fill(folder / "scraped", engine_samples=[EngineSample(seen_at=T0, engine="e0", up=True, running=1.0)])
    lengths = [_turn(n, 600 + 40 * n, completion_tokens=300) for n in range(1, 41)]
    _fill(
        folder / "busy",
        requests=lengths,
        engine_samples=[EngineSample(seen_at=T0 + n, engine="e0", running=float(n % 7)) for n in range(40)],
    )
    _fill(folder / "agents", requests=[_turn(n, tokens) for n, tokens in enumerate((900, 2100, None, 3400), 1)])
    for name, text in {
        "lensd.toml": CONFIG, "token": TOKEN, "wrong-token": "nonsense", "keys.toml": KEYS, "bad.toml": '[serve]\nstor = "x"\n',
        "logs/resp.txt": REFUSED, "damaged/store.json": "zzz", "garbage/store.json": '{"schema_version":2}', "garbage/main.duckdb": "zzz",
        "8b/config.json": MODEL, "new/config.json": MODEL.replace("llama", "never_heard_of"), "list/config.json": "[]",
        "newer/store.json": '{"schema_version":99}', "empty/.keep": "", "binary/ls": "\x7fELF\0\0\0",
        "secrets.toml": '[gateway]\nupstreams = [{url = "http://user:s3cr3t@e0:8000"}]\n[[alerts.webhooks]]\nname = "ops"\n'
        'url = "https://hooks.example/T0/s3cr3t?key=s3cr3t"\n',
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "empty" / ".keep").unlink()
    return folder


def _fill(folder, **rows):
    store = FolderStore(folder)
    store.append(batch_of(rows))
    store.close()


def _turn(number, tokens, **more):
    how = ({"outcome": "ok", "status": 200} if tokens else {"outcome": "refused", "status": 503}) | more
    return RequestRow(
        request_key=number, revision=0, request_id=f"turn-{number}", started_at=T0 + number * 10_000_000, settled=True, session_id="run-7",
        model="tiny", prompt_tokens=tokens, total_ms=250.0, **how,
    )  # fmt: skip


@contextlib.contextmanager
def engines(place):
    """Pretended engines at each rung, by what a transcript calls their URLs."""
    (place / "site" / "lensd-1.dist-info").mkdir(parents=True, exist_ok=True)
    site = {"PYTHONPATH": str(place / "site")}
    log = place / "vllm.log"
    with contextlib.ExitStack() as stack:
        started = {
            "<rung-0>": pretending(place, output=subprocess.DEVNULL),
            "<rung-1>": pretending(place, log=log),
            "<rung-2>": pretending(place, *SPANS, log=log, **TRACED),
            "<rung-3>": pretending(place, *SPANS, *INSIDE, log=log, **TRACED, **SENDS, **site),
            "<grpc>": pretending(place, *SPANS, log=log, VLLM_PLUGINS="other", **SENDS, **site),
        }
        yield {name: stack.enter_context(one).url for name, one in started.items()}


@pytest.fixture
def shell(place, monkeypatch):
    """Runs a command line in the place as a shell would; exit status, stdout, stderr."""
    for name in [*os.environ]:
        if name.startswith(("LENSD_", "ENGINE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.chdir(place)

    def call(line):
        words = shlex.split(line)
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as own, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            while "=" in words[0]:
                own.setenv(*words.pop(0).split("=", 1))
            assert words.pop(0) == "lensd"
            return run(words), out.getvalue(), err.getvalue()

    return call


def transcript(line, status, out, err, known):
    """The lines of one command, with what differs from run to run put aside."""
    text = "\n".join([f"$ {line}", f"exit {status}", *_led("|", out), *_led("!", err)])
    for name, value in known.items():
        text = text.replace(value, name)
    return text


def _meant(line, known):
    for name, value in known.items():
        line = line.replace(name, value)
    return line


def _led(mark, text):
    return [f"{mark} {line}".rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_printed(path, place, shell, monkeypatch):
    lines = re.findall(r"^\$ (.+)$", path.read_text(), re.MULTILINE)
    with contextlib.ExitStack() as stack:
        known = {"<folder>": str(place)}
        if path.stem.startswith("daemon-"):
            url = stack.enter_context(served())
            known["<daemon>"] = url
            monkeypatch.setenv("LENSD_URL", url)
        if path.stem.startswith("attach"):
            known |= stack.enter_context(engines(place))
        made = "\n\n".join(transcript(line, *shell(_meant(line, known)), known) for line in lines) + "\n"
    if WRITE:
        path.write_text(made)
    assert made == path.read_text()


def test_every_verb_has_its_help_in_a_transcript():
    from lensd.cli.main import COMMANDS

    helped = (ROOT / "tests" / "transcripts" / "help.txt").read_text()
    assert [verb for verb in COMMANDS if f"$ lensd {verb}" not in helped] == []


def test_every_exit_status_is_in_a_transcript():
    seen = {int(status) for path in FILES for status in re.findall(r"^exit (\d+)$", path.read_text(), re.MULTILINE)}
    assert {0, 2, 3, 4, 5} <= seen
    assert 1 not in seen


def test_no_transcript_holds_a_secret_or_a_traceback():
    for path in FILES:
        text = Path(path).read_text()
        assert "s3cr3t" not in text, path
        assert TOKEN not in text, path
        assert "Traceback" not in text, path
