"""The client's guide: each snippet runs as it stands, and what it says is what the code says."""

import contextlib
import inspect
import re
import time
from collections.abc import Iterator

import pytest
from checkout import ROOT
from lensd_collectors import conventions
from lensd_collectors.client import failures, instrument, retries, watch
from lensd_collectors.client.attempt import Attempt
from lensd_collectors.client.libraries import LIBRARIES
from lensd_collectors.client.paths import PATHS
from lensd_collectors.conventions import ATTRIBUTES
from llm_server import LlmServer

GUIDE = (ROOT / "docs" / "client.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", GUIDE, flags=re.M)}
SNIPPETS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.M | re.S)


@pytest.fixture
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("LENSD_TOKEN", "t")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits {seconds} s"))
    yield
    instrument(libraries=())()


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_what_is_shown_runs(server: LlmServer, snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("http://127.0.0.1:8080", "http://127.0.0.1:4318"):
        snippet = snippet.replace(address, server.url)
    exec(compile(snippet, "docs/client.md", "exec"), {"__name__": "snippet"})  # noqa: S102
    asks = [name for name in (".create(", ".post(") if name in snippet]
    assert len(server.seen) == len(asks)
    printed = capsys.readouterr().out
    assert "error" not in printed.lower()
    instrument(libraries=())()
    assert len(server.spans()) == (1 if asks and "instrument(" in snippet else 0)


def names(section: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", SECTIONS[section]))


def test_attributes_are_those_that_are_sent() -> None:
    rows = [line for line in SECTIONS["What is told"].splitlines() if line.startswith("| `")]
    written = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    source = inspect.getsource(Attempt._attributes)
    constants = {f"c.{each}" for each in re.findall(r"\bc\.([A-Z_]+):", source)}
    sent = {name for name in ATTRIBUTES if f"c.{_constant(name)}" in constants}
    assert written == sent


def _constant(name: str) -> str:
    return next(key for key, value in vars(conventions).items() if value is ATTRIBUTES[name])


def test_kinds_of_failure_exist() -> None:
    written = {name for name in names("What is told") if re.fullmatch(r"[a-z]+_[a-z]+|timeout|cancelled", name)}
    known = {kind for kind, _ in failures._KINDS} | {"stream_error"}
    assert written <= known


def test_paths_headers_and_libraries_are_those_of_the_code() -> None:
    shown = names("Which requests") - {"paths", "*"}
    assert shown == set(PATHS)
    assert {watch.REQUEST_ID, watch.TRACEPARENT, watch.TIMEOUT} <= names("What a request carries")
    assert all(library in SECTIONS["One line"] for library in LIBRARIES)


def test_figures_of_asking_again_are_the_codes() -> None:
    told, defaults = SECTIONS["Asking again"], inspect.signature(retries.Retries).parameters
    assert f"At most {defaults['most'].default} more attempts" in told
    assert f"begin at {defaults['first_s'].default:g} s" in told
    assert f"at least {defaults['busy_s'].default:g} s" in told
    assert f"longer than {defaults['longest_s'].default:g} s" in told
    assert f"at most {defaults['extra_share'].default:.0%}".replace("%", " %") in told
    assert f"at most {defaults['saved'].default} are saved up" in told
    assert {int(each) for each in re.findall(r"\b(\d{3})\b", told.split("Asked again are")[1].split("\n")[0])} == retries.TRANSIENT


def test_files_that_are_named_exist() -> None:
    with contextlib.chdir(ROOT):
        for path in re.findall(r"`((?:collectors|docs)/[^`]+)`", GUIDE):
            assert (ROOT / path).exists(), path
