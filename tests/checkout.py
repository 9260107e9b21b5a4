"""What a test may know of this checkout: where it lies, where its engine is, and the tools that are in no package."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
ENGINE = Path(os.environ.get("LENSD_ENGINE_DIR") or ROOT / ".engine")
ENGINE_STARTS_LIMIT = 16  # starts of a real engine in one run, whatever process makes them


def load_by_path(name: str, path: Path) -> ModuleType:
    """A module that is in no package, such as the engine's tools; loaded once a name."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


serving = load_by_path("engine_serve", ROOT / "tools" / "engine" / "serve.py")


def engine_starts() -> list[str]:
    """One line for every real engine that this run has started, in whatever process."""
    path = Path(os.environ.get(serving.STARTS_FILE, ""))
    return path.read_text().splitlines() if path.is_file() else []
