"""Which torch to install for the CPU engine and how much there is to download, known before the download begins."""

import json
import os
import shlex
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

ANSWER_LIMIT_S = 10.0
CPU_BYTES = 192_000_000
CUDA_BYTES = 3_000_000_000  # the CUDA build with the libraries it asks for


@dataclass(frozen=True)
class TorchSource:
    """What to hand to `pip install`, and the bytes that it will fetch (None: not known before)."""

    arguments: tuple[str, ...]
    name: str
    download_bytes: int | None

    def describe(self) -> str:
        if self.download_bytes is None:
            return f"{self.name}, size not known before the download"
        return f"{self.name}, {self.download_bytes / 1e6:,.0f} MB to download"


def same_release(version: str, release: str) -> bool:
    """Whether a version is that release, whatever build it is: 2.13.0+cpu is 2.13.0."""
    return version.split("+")[0] == release


def choose_torch(python: str, release: str, wished: str, environment: Mapping[str, str]) -> TorchSource:
    """The wished one, else the CPU build where an index of pip's has it, else the plain release.

    A CUDA build serves on the CPU too, where vLLM imports with it; the build checks that in a later step.
    """
    if wished:
        return TorchSource(tuple(shlex.split(wished)), f"{wished} (LENSD_TORCH)", None)
    for name in (f"torch=={release}+cpu", f"torch=={release}"):
        urls = planned_downloads(python, name, environment)
        if urls is not None:
            return TorchSource((name,), name, total_bytes(urls, name))
    # pip will say why it finds neither
    return TorchSource((f"torch=={release}",), f"torch=={release}", None)


def planned_downloads(python: str, requirement: str, environment: Mapping[str, str]) -> list[str] | None:
    """The files that pip would fetch for a requirement; None where it can't be had."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=dict(environment))
    if done.returncode:
        return None
    return [item["download_info"]["url"] for item in json.loads(done.stdout)["install"]]


def total_bytes(urls: list[str], name: str) -> int:
    """Bytes of all the files; where one can't be asked for, what such a build is known to weigh."""
    sizes = [file_bytes(url) for url in urls]
    if all(size is not None for size in sizes):
        return sum(size or 0 for size in sizes)
    return CPU_BYTES if name.endswith("+cpu") else CUDA_BYTES


def file_bytes(url: str) -> int | None:
    """The size of a file behind a URL, without fetching it."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).stat().st_size
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S, context=context) as answer:
            length = answer.headers.get("Content-Length")
            return int(length) if length else None
    except (OSError, ValueError):
        return None
