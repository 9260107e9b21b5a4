"""Writes requirements/all.lock (what runs) and requirements/dev.lock (that and the dev group): pinned, with hashes, no index named.

usage: lock.py [--upgrade]     Python 3.11 on Linux x86-64, from the environment that holds pip-tools
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = [
    *("--generate-hashes", "--strip-extras", "--allow-unsafe", "--no-header", "--no-annotate", "--quiet"),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options"),
]


def requirements(names: list[str]) -> list[str]:
    """The requirement lines of pyproject.toml: the base ones, those of the extras but `all`, and of the named groups."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = described["project"]
    found = list(project["dependencies"])
    for extra, lines in project["optional-dependencies"].items():
        found += lines if extra != "all" else []
    for name in names:
        found += described["dependency-groups"][name]
    return found


def lock(target: Path, lines: list[str], upgrade: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "wanted.in"
        source.write_text("\n".join(lines) + "\n")
        upgrading = ["--upgrade"] if upgrade else []
        command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *upgrading, "--output-file", str(target), str(source)]
        subprocess.run(command, check=True, cwd=folder)
    kept = [line for line in target.read_text().splitlines() if not line.startswith(("#", "--"))]
    head = "# Made by tools/lock.py for Python 3.11 on Linux x86-64: `make lock`. Install with --require-hashes.\n"
    target.write_text(head + "\n".join(kept) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take newer versions than the ones locked now")
    upgrade: bool = parser.parse_args().upgrade
    folder = ROOT / "requirements"
    folder.mkdir(exist_ok=True)
    # dev first; what runs is then resolved to the same versions
    lock(folder / "dev.lock", requirements(["dev"]), upgrade)
    if not (folder / "all.lock").exists() or upgrade:
        (folder / "all.lock").write_text((folder / "dev.lock").read_text())
    lock(folder / "all.lock", requirements([]), upgrade=False)


if __name__ == "__main__":
    main()
