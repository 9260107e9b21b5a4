"""The command as a process: pipes, signals, terminals, what it imports, and what it says where an extra is missing."""

import os
import pty
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from seeded import TOKEN, fill_folder, served

LENSD = (sys.executable, "-m", "lensd")
HEAVY = ("duckdb", "pyarrow", "streamlit", "pandas", "altair", "uvicorn", "aiohttp", "starlette", "opentelemetry", "google.protobuf")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    fill_folder(folder / "store")
    (folder / "token").write_text(TOKEN)
    (folder / "lensd.toml").write_text('[serve]\nstore = "store"\napi = "127.0.0.1:1"\ntoken_file = "token"\n')
    return folder


@pytest.fixture
def environ(place):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LENSD_", "ENGINE_", "NO_COLOR"))}
    return kept | {"HOME": str(place), "TERM": "xterm-256color"}


@pytest.fixture
def lensd(place, environ):
    def call(*arguments, command=LENSD, **more):
        given = {"cwd": place, "env": environ, "capture_output": True, "text": True, "timeout": 60, "check": False} | more
        return subprocess.run([*command, *arguments], **given)

    return call


@pytest.mark.parametrize("arguments", [("runbooks", "ls"), ("requests", "ls", "--json"), ("diagnose", "wrong-key-1"), ("--help",)])
def test_a_closed_pipe_is_no_error(place, environ, arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*LENSD, *arguments], cwd=place, env=environ, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_that_closes_in_the_middle_is_no_error(place, environ):
    line = "import sys; from lensd.cli.main import main; sys.argv = ['lensd', 'runbooks', 'ls']; import lensd.cli.table as t;"
    line += "t.print_table = lambda *a, **k: [print('x' * 1000) for _ in range(1000)]; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", line], cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (0, "")


def test_ctrl_c_ends_a_wait_with_130_and_without_a_word(place, environ):
    with served() as url:
        process = subprocess.Popen(
            [*LENSD, "diagnose", "not-here-yet", "--wait", "30"], cwd=place, env=environ | {"LENSD_URL": url}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(2)  # it has no sign of having begun to wait
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


def at_terminal(place, environ, *arguments):
    """Output of a command that has a terminal for stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([*LENSD, *arguments], cwd=place, env=environ, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
    os.close(follower)
    told = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the last one at the other end is gone
            break
        if not piece:
            break
        told += piece
    os.close(leader)
    process.wait(60)
    return told.decode()


@pytest.mark.parametrize(
    ("more", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_that_take_it(place, environ, more, is_coloured):
    told = at_terminal(place, environ | more, "diagnose", "wrong-key-1", "--wait", "0")
    assert "auth-wrong-key" in told
    assert ("\x1b" in told) == is_coloured


def test_without_a_terminal_there_is_no_escape_code(lensd):
    for arguments in (("diagnose", "wrong-key-1"), ("--help",), ("diagnose", "--bogus"), ("requests", "ls")):
        done = lensd(*arguments)
        assert "\x1b" not in done.stdout + done.stderr


def test_at_a_terminal_a_long_wait_is_explained(place, environ):
    with served() as url:
        told = at_terminal(place, environ | {"LENSD_URL": url}, "diagnose", "not-here-yet", "--wait", "2.5")
    assert "lensd: waiting up to 2.5 s for the request to settle; --wait 0 asks at once" in told
    assert "lensd: no request not-here-yet" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnose", "wrong-key-1"),
        ("diagnose", "again-1", "--json"),
        ("requests", "ls"),
        ("incidents", "ls"),
        ("incidents", "show", "inc-9"),
    ],
)
def test_the_way_through_a_daemon_imports_nothing_heavy(lensd, environ, arguments):
    code = (
        "import sys\nfrom lensd.cli.main import run\nsys.argv[0] = 'lensd'\nrun(sys.argv[1:])\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    with served() as url:
        done = lensd(*arguments, command=(sys.executable, "-c", code), env=environ | {"LENSD_URL": url})
    assert done.stderr.splitlines()[-1] == "heavy: []", done.stderr


@pytest.mark.parametrize("arguments", [("diagnose", "wrong-key-1"), ("diagnose", "--json", "wrong-key-1"), ("diagnose", "--last", "-q")])
def test_a_plain_diagnose_through_a_daemon_needs_no_typer(lensd, environ, arguments):
    with served() as url:
        done = lensd(*arguments, command=(sys.executable, "-c", BLOCK.format(module="typer")), env=environ | {"LENSD_URL": url})
    assert (done.returncode, done.stderr) == (3 if "wrong-key-1" in arguments else 0, "")
    assert done.stdout


BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from lensd.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("typer", "cli", ("requests", "ls")),
        ("typer", "cli", ("--help",)),
        ("typer", "cli", ()),
        ("duckdb", "cli", ("diagnose", "ok-1", "--store", "store")),
        ("pyarrow", "cli", ("requests", "ls", "--json")),
        ("duckdb", "cli", ("triage", ".")),
        ("yaml", "cli", ("runbooks", "ls")),
        ("duckdb", "serve", ("serve",)),
        ("uvicorn", "serve", ("serve",)),
        ("starlette", "serve", ("serve",)),
        ("httptools", "gateway", ("gateway",)),
        ("streamlit", "dashboard", ("dashboard",)),
    ],
)
def test_a_missing_extra_is_named_in_one_line(lensd, module, extra, arguments):
    done = lensd(*arguments, command=(sys.executable, "-c", BLOCK.format(module=module)))
    said = f"this needs the {extra} extra ({module} is not installed): pip install 'lensd[{extra}]'"
    assert (done.returncode, done.stderr) == (2, f"lensd: {said}\n")
    if "--json" in arguments:
        assert msgspec.json.decode(done.stdout) == {"schema_version": 1, "error": {"code": "extra-missing", "message": said}}
    else:
        assert done.stdout == ""


HOLD = """
import sys, time
from pathlib import Path
from lensd.store.folder import FolderStore
store = FolderStore(Path("store"))
print("held", flush=True)
time.sleep(60)
"""


def test_a_store_that_somebody_holds_and_who_does_not_answer_is_told_with_the_process(place, environ, lensd):
    holder = subprocess.Popen([sys.executable, "-c", HOLD], cwd=place, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        begun = time.monotonic()
        done = lensd("diagnose", "ok-1", "--json")
        assert time.monotonic() - begun < 10
        by_hand = lensd("requests", "ls", "--store", "store")
    finally:
        holder.kill()
        holder.wait()
    told = msgspec.json.decode(done.stdout)["error"]
    assert (done.returncode, told["code"]) == (5, "store-busy")
    assert f"belongs to process {holder.pid}" in told["message"]
    assert told["message"].endswith("it does not answer at http://127.0.0.1:1")
    assert (by_hand.returncode, by_hand.stderr.count("\n")) == (5, 1)


def test_a_fault_of_ours_is_1_with_its_traceback_and_a_document(lensd):
    code = "import lensd.report; lensd.report.as_json = lambda _: 1 / 0\nfrom lensd.cli.main import main; main()"
    done = lensd("diagnose", "ok-1", "--json", command=(sys.executable, "-c", code))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert msgspec.json.decode(done.stdout)["error"] == {"code": "bug", "message": "ZeroDivisionError: division by zero"}


def test_the_version(lensd):
    assert lensd("--version").stdout.count(".") == 2
