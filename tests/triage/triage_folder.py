"""Triage of a folder made from texts, as a stranger would hand it over."""

from pathlib import Path

from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

BOOKS = load()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def run(*paths: Path) -> Diagnosis:
    return triage(list(paths), BOOKS, {}, Limits())
