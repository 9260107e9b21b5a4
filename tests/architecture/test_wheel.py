"""The wheel is what people get: complete, light, and no burden in an engine's environment."""

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable
from email import message_from_string
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkout import ENGINE, ROOT

PACKAGES = {
    "lensd": ROOT / "lensd",
    "lensd_collectors": ROOT / "collectors/lensd_collectors",
    "lensd_dashboards": ROOT / "dashboards/lensd_dashboards",
}
IMPORT_LIMIT_MS = 150
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("lensd-*.whl")
    return made


@pytest.fixture(scope="session")
def inside(wheel: Path) -> dict[str, bytes]:
    """Every file of the wheel by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def metadata(inside: dict[str, bytes]) -> Message:
    (name,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
    return message_from_string(inside[name].decode())


@pytest.fixture(scope="session")
def entry_points(inside: dict[str, bytes]) -> list[str]:
    """`module:object` of every entry point, the command included."""
    (name,) = (name for name in inside if name.endswith(".dist-info/entry_points.txt"))
    parser = configparser.ConfigParser()
    parser.read_string(inside[name].decode())
    return [target for section in parser.sections() for _, target in parser.items(section)]


def runner(environment: Path, home: Path) -> Run:
    """Runs a program of an environment from `/`, with an empty HOME and nothing else of ours around it."""

    def run(*command: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        env = {"HOME": str(home), "PATH": f"{environment / 'bin'}:/usr/bin:/bin", **settings}
        return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)

    return run


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An empty environment with the wheel and msgspec, which is copied from here so that it needs no network."""
    folder = tmp_path_factory.mktemp("base")
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    found = find_spec("msgspec")
    assert found is not None
    assert found.origin is not None
    (packages,) = environment.glob("lib/python3.*/site-packages")
    shutil.copytree(Path(found.origin).parent, packages / "msgspec")
    return runner(environment, folder)


@pytest.fixture(scope="session")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An empty environment with `lensd[all]`, installed as people do."""
    folder = tmp_path_factory.mktemp("full")
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    install = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", f"{wheel}[all]"]
    done = subprocess.run(install, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")})
    assert done.returncode == 0, done.stderr
    return runner(environment, folder)


def test_it_holds_every_module_and_data_file_and_nothing_else(inside: dict[str, bytes]) -> None:
    expected = {
        f"{package}/{path.relative_to(place)}"
        for package, place in PACKAGES.items()
        for path in place.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    expected |= {f"lensd/_runbooks/{path.name}" for path in (ROOT / "runbooks").iterdir()}
    assert {name for name in inside if ".dist-info/" not in name} == expected


def test_runbooks_are_inside_as_they_are_here(inside: dict[str, bytes]) -> None:
    held = {name.removeprefix("lensd/_runbooks/"): text for name, text in inside.items() if name.startswith("lensd/_runbooks/")}
    assert held
    assert held == {path.name: path.read_bytes() for path in (ROOT / "runbooks").iterdir()}


def test_the_base_requires_msgspec_only(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist", [])
    assert [re.split(r"[<>=~! ;]", line)[0] for line in required if "extra ==" not in line] == ["msgspec"]
    assert set(metadata.get_all("Provides-Extra", [])) == {"gateway", "agent", "client", "serve", "cli", "dashboard", "all"}


def test_all_is_the_sum_of_the_extras(metadata: Message) -> None:
    by_extra: dict[str, set[str]] = {}
    for line in metadata.get_all("Requires-Dist", []):
        if found := re.fullmatch(r"(.+?); extra == '(\w+)'", line):
            by_extra.setdefault(found[2], set()).add(found[1])
    everything = by_extra.pop("all")
    assert everything == set().union(*by_extra.values())


def test_every_entry_point_names_a_module_that_is_inside(inside: dict[str, bytes], entry_points: list[str]) -> None:
    assert "lensd.cli.main:main" in entry_points
    modules = [target.partition(":")[0].replace(".", "/") for target in entry_points]
    assert [module for module in modules if f"{module}.py" not in inside and f"{module}/__init__.py" not in inside] == []


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ((), ("cli",)),
        (("--help",), ("cli",)),
        (("diagnose", "--last"), ("cli",)),
        (("triage", "/"), ("cli",)),
        (("serve",), ("serve", "cli")),
        (("gateway",), ("gateway", "cli")),
        (("agent",), ("agent", "cli")),
        (("dashboard",), ("dashboard", "cli")),
    ],
)
def test_without_extras_a_command_says_in_one_line_which_is_missing(base: Run, arguments: tuple[str, ...], extras: tuple[str, ...]) -> None:
    done = base("lensd", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    named = re.search(r"pip install 'lensd\[([\w,]+)\]'", line)
    assert named is not None, line
    assert named[1].split(",")[0] in extras


def test_the_base_holds_what_runs_inside_other_programs(base: Run) -> None:
    done = base("python", "-c", "import lensd_collectors.conventions, lensd_collectors.export, lensd.records, lensd.errors")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_with_all_it_lists_its_runbooks_from_anywhere(full: Run, inside: dict[str, bytes]) -> None:
    done = full("lensd", "runbooks", "ls")
    assert (done.returncode, done.stderr) == (0, "")
    for name in inside:
        if name.startswith("lensd/_runbooks/") and name.endswith(".md"):
            assert Path(name).stem in done.stdout


@pytest.mark.slow
def test_with_all_it_judges_a_folder_from_anywhere(full: Run, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/captures/vllm-0.32.0/kill9-server-log.txt", tmp_path)
    done = full("lensd", "triage", str(tmp_path), "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema_version"], document["subject"]["kind"], document["verdict"]["label"]) == (1, "files", "engine-crash")


@pytest.mark.slow
def test_with_all_it_serves_the_dashboard_from_anywhere(full: Run, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    path = full("python", "-c", "import os; print(os.environ['PATH'])").stdout.strip()
    log = tmp_path / "dashboard.log"
    with log.open("w") as output:
        env = {"HOME": str(tmp_path), "PATH": path, "LENSD_DASHBOARD__LISTEN": listen}
        program = shutil.which("lensd", path=path)
        assert program is not None
        process = subprocess.Popen([program, "dashboard"], cwd="/", env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        assert answers(f"http://{listen}/_stcore/health", process, 60), log.read_text()
    finally:
        process.terminate()
        assert process.wait(20) is not None


def answers(url: str, process: "subprocess.Popen[bytes]", limit_s: float) -> bool:
    """Whether a URL answers 200 before the process ends or the limit is over."""
    until = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            time.sleep(0.2)
    return False


@pytest.mark.engine
def test_in_the_engines_environment_it_changes_no_other_distribution(wheel: Path) -> None:
    command = [str(ENGINE / "venv/bin/python"), "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    planned = [item["metadata"]["name"] for item in json.loads(done.stdout)["install"]]
    assert planned == ["lensd"]


IMPORTS = """
import importlib, sys, time
import vllm.v1.metrics.loggers
sys.path.insert(0, sys.argv[1])
for target in sys.argv[2:]:
    began = time.process_time()
    importlib.import_module(target.partition(":")[0])
    print(target, 1000 * (time.process_time() - began))
"""


@pytest.mark.engine
def test_beside_vllm_its_entry_points_import_at_once(wheel: Path, entry_points: list[str], tmp_path: Path) -> None:
    python = str(ENGINE / "venv/bin/python")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    subprocess.run([python, "-m", "compileall", "-q", str(tmp_path)], check=True)  # as pip does
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, "-c", IMPORTS, str(tmp_path), *entry_points], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    # processor time: what an import costs, however busy the machine is
    took = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("lensd")}
    assert sorted(took) == sorted(entry_points)
    assert all(ms < IMPORT_LIMIT_MS for ms in took.values()), took
