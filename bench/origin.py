"""Which code on which machine gave a bench's figures: how the document of every bench begins."""

import os
import platform
import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def origin(bench: str) -> dict[str, str]:
    """`bench`, `commit` and `machine`."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=_HERE, capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return {"bench": bench, "commit": commit, "machine": machine}
