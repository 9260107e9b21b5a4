"""Compiles the stand-in for libnvidia-ml.so.1, and runs Python processes that find it: the path is read when a process begins."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from checkout import ROOT

SOURCE = Path(__file__).parent / "stub.c"
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")
PATHS = (ROOT, ROOT / "collectors", ROOT / "tests")


def compiler_missing() -> str | None:
    return None if shutil.which("cc") else "no cc here: install a C compiler"


def require_compiler() -> None:
    """Skips the test that asks, or fails it where everything that is required must be there."""
    reason = compiler_missing()
    if reason and os.environ.get("LENSD_REQUIRE"):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


def built(folder: Path, *defines: str) -> Path:
    """The folder that holds the library. Raises CalledProcessError for a source that does not compile."""
    folder.mkdir(parents=True, exist_ok=True)
    of_part = [*(f"-D{name}" for name in defines), "-Wno-unused-variable"] if defines else []
    command = ["cc", *FLAGS, *of_part, "-o", str(folder / LIBRARY), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def environment(library: Path | None, script: Path, **settings: object) -> dict[str, str]:
    """Of a process that loads the library, or none; `settings` are those of the library, without NVML_STUB_."""
    own = {f"NVML_STUB_{name.upper()}": str(value) for name, value in settings.items()}
    paths = os.pathsep.join(map(str, PATHS))
    return {**os.environ, "LD_LIBRARY_PATH": str(library or ""), "NVML_STUB_SCRIPT": str(script), "PYTHONPATH": paths, **own}


def python(arguments: Iterable[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    """A Python process whose output is a pipe."""
    return subprocess.Popen([sys.executable, *arguments], env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
