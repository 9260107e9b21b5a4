"""The house has one way: this checkout keeps to it, and a planted arrow, circle or folder import is seen."""

import re
from pathlib import Path

import pytest
from checkout import ROOT, load_by_path

imports = load_by_path("tools_imports", ROOT / "tools" / "imports.py")


def plant(root: Path, files: dict[str, str]) -> Path:
    """A small tree with the packages' layout."""
    for package in imports.PLACES.values():
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return root


def test_this_checkout_keeps_to_the_one_way() -> None:
    assert len(imports.modules(ROOT)) > 20
    assert imports.faults(ROOT) == []


def test_arrows_that_run_forward_are_let_through(tmp_path: Path) -> None:
    files = {
        "lensd/records.py": "from lensd_collectors.conventions import Stage\n",
        "collectors/lensd_collectors/conventions.py": "class Stage: ...\n",
        "lensd/store/writer.py": "from lensd.records import Verdict\nimport lensd\n",
        "lensd/cli/main.py": "def main():\n    from ..daemon import serve\n",
        "lensd/daemon.py": "from lensd.store import writer\nimport os, json\n",
        "dashboards/lensd_dashboards/data.py": "from lensd.api.client import Client\nfrom . import links\n",
        "dashboards/lensd_dashboards/links.py": "from lensd.records import Verdict\n",
        "lensd/api/client.py": "from lensd.errors import ServerError\n",
        "lensd/errors.py": "",
        "lensd/api/local.py": "from lensd.config import Config\n",
        "lensd/config.py": "from lensd.alerts.config import AlertsConfig\n",
        "lensd/cli/dashboard.py": "from lensd_dashboards.server import run\n",
    }
    assert imports.faults(plant(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("lensd/store/writer.py", "import lensd.daemon\n", "runs back"),
        ("lensd/store/writer.py", "def f():\n    from lensd.diagnosis import diagnose\n", "runs back"),
        ("lensd/store/writer.py", "from ..api import app\n", "runs back"),
        ("lensd/timeline/assemble.py", "from lensd import incidents\n", "runs back"),
        ("lensd/alerts/config.py", "from lensd.config import Config\n", "runs back"),
        ("lensd/api/client.py", "from lensd.store.interface import Store\n", r"lensd\.api\.client imports only"),
        ("lensd/records.py", "from lensd_collectors.rows import Row\n", r"lensd\.records imports only"),
        ("collectors/lensd_collectors/export.py", "from lensd.records import Verdict\n", "runs back"),
        ("collectors/lensd_collectors/export.py", "import lensd\n", "imports nothing of lensd"),
        ("collectors/lensd_collectors/export.py", "import lensd_dashboards.data\n", "only its own command imports"),
        ("dashboards/lensd_dashboards/data.py", "from lensd.store.interface import Store\n", "lensd_dashboards imports only"),
        ("dashboards/lensd_dashboards/pages/request.py", "from lensd_collectors.rows import Row\n", "lensd_dashboards imports only"),
        ("lensd/cli/main.py", "import runbooks\n", "runbooks is a folder"),
        ("lensd/cli/main.py", "from tests.checkout import ROOT\n", "tests is a folder"),
        ("lensd/cli/main.py", "from collectors.lensd_collectors import rows\n", "collectors is a folder"),
        ("lensd/cli/main.py", "import dashboards.lensd_dashboards\n", "dashboards is a folder"),
        ("lensd/cleverness.py", "import lensd.records\n", "lensd.cleverness has no place"),
        ("lensd/__init__.py", "from lensd.records import Verdict\n", "root imports nothing"),
    ],
)
def test_a_planted_arrow_is_named_with_its_place(tmp_path: Path, file: str, text: str, why: str) -> None:
    root = plant(tmp_path, {"lensd/incidents.py": "", file: text})
    (said,) = imports.faults(root)
    assert said.startswith(f"{file}:{text.count(chr(10))}: ")
    assert re.search(why, said), said


def test_a_planted_circle_is_named_with_all_its_modules(tmp_path: Path) -> None:
    files = {
        "lensd/store/journal.py": "from lensd.store import writer\n",
        "lensd/store/writer.py": "from lensd.memory import plan\n",
        "lensd/memory/plan.py": "import lensd.store.journal\n",
        "lensd/store/queries.py": "from lensd.store.journal import Journal\n",
    }
    circle = "circle: lensd.memory.plan -> lensd.store.journal -> lensd.store.writer -> lensd.memory.plan"
    assert imports.faults(plant(tmp_path, files)) == [circle]


def test_the_command_fails_on_a_planted_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = plant(tmp_path, {"lensd/store/writer.py": "import lensd.daemon\n"})
    monkeypatch.setattr("sys.argv", ["imports.py", str(root)])
    assert imports.main() == 1
    assert capsys.readouterr().out == (
        "lensd/store/writer.py:1: lensd.store.writer imports lensd.daemon: it runs back: lensd.store.writer stands before lensd.daemon\n"
    )
