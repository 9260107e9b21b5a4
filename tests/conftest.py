"""What every test may ask for: `require("engine")`, a browser, and a summary that names what did not run.

A test says its figures with `record_property("figures", text)`; the summary prints them, whichever process ran it.

`LENSD_REQUIRE=engine,chromium` (set in CI) turns a missing thing into a failure.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ENGINE, ENGINE_STARTS_LIMIT, ROOT, engine_starts, load_by_path, serving

screenshot = load_by_path("tools_screenshot", ROOT / "tools" / "screenshot.py")
STARTS = pytest.StashKey[Path]()

Require = Callable[[str], None]


def chromium_missing() -> str | None:
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"no {name} here: install the packages chromium and chromium-driver"
    return None


MISSING: dict[str, Callable[[], str | None]] = {
    "engine": lambda: serving.missing(ENGINE),
    "chromium": chromium_missing,
}


def require_thing(name: str) -> None:
    """Skip the test when a thing is not here, or fail it when LENSD_REQUIRE names the thing."""
    reason = MISSING[name]()
    if reason is None:
        return
    if name in os.environ.get("LENSD_REQUIRE", "").split(","):
        pytest.fail(f"LENSD_REQUIRE names {name}: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def require() -> Require:
    """`require("engine")` or `require("chromium")` in a test or fixture: it runs only where the thing is."""
    return require_thing


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return ROOT


@pytest.fixture(scope="session")
def engine_dir(require: Require) -> Path:
    """The folder of the CPU vLLM (environment and model)."""
    require("engine")
    return ENGINE


@pytest.fixture
def browser(require: Require, tmp_path: Path) -> Iterator[Any]:
    """A headless Chromium of 1400 x 1000 points, driven through selenium."""
    require("chromium")
    driver = screenshot.browser(1400, 1000, str(tmp_path / "chromium"), dark=False)
    yield driver
    driver.quit()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chromium: needs a headless Chromium and its driver")
    if unknown := set(filter(None, os.environ.get("LENSD_REQUIRE", "").split(","))) - set(MISSING):
        raise pytest.UsageError(f"LENSD_REQUIRE names {', '.join(sorted(unknown))}: known are {', '.join(MISSING)}")


def pytest_sessionstart(session: pytest.Session) -> None:
    path = ROOT / ".pytest_cache" / f"engine-starts-{os.getpid()}"
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    session.config.stash[STARTS] = path
    os.environ[serving.STARTS_FILE] = str(path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in MISSING:
        if item.get_closest_marker(name):
            require_thing(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(engine_starts()) > ENGINE_STARTS_LIMIT and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    out = terminalreporter
    by_reason: dict[str, list[str]] = {}
    for report in out.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        by_reason.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid)
    for report in out.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "figures":
                out.section(report.nodeid)
                out.write_line(text)
    if by_reason:
        out.section("did not run")
    for reason, tests in sorted(by_reason.items()):
        out.write_line(reason)
        for test in tests:
            out.write_line(f"  {test}")
    starts = engine_starts()
    if len(starts) > ENGINE_STARTS_LIMIT:
        out.section("too many engine starts")
        for line in starts:
            out.write_line(f"  {line}")
    if starts:
        out.write_line(f"engine starts: {len(starts)} of at most {ENGINE_STARTS_LIMIT}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if path := config.stash.get(STARTS, None):
        path.unlink(missing_ok=True)
