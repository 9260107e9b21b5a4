"""The demo's engine: a small real vLLM built in the checkout, or one that somebody names."""

import http.client
import importlib.util
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

from lensd.demo.place import Place, Target
from lensd.errors import EvidenceError, UsageError

TOOLS = Path("tools/engine")


class NoEngineError(EvidenceError):
    """No engine can be had here; says why."""

    code = "engine-missing"


def build(root: Path, tools: Path = TOOLS) -> None:
    """Build the CPU vLLM in `root`, or find that it is there. Raises NoEngineError."""
    script = tools / "build.py"
    if not script.is_file():
        raise NoEngineError(
            f"no {script} here: the demo's engine is built from a checkout; run it there, or set ENGINE_URL to a running engine"
        )
    done = subprocess.run([sys.executable, str(script), "--dir", str(root)], stdout=sys.stderr.fileno(), check=False)
    if done.returncode != 0:
        raise NoEngineError(f"{script} ended with {done.returncode}: its last line says why; ENGINE_URL names a running engine instead")


def start(root: Path, place: Place, tools: Path = TOOLS) -> Any:
    """Start a one-slot engine that sends its spans here; returns once it answers. Raises NoEngineError."""
    serve = _load(tools / "serve.py")
    engine = serve.Engine(
        root,
        place.folder / "engine.log",
        max_num_seqs=1,
        max_model_len=512,
        otlp_endpoint=f"{place.otlp_url}/v1/traces",
        otlp_headers={"authorization": f"Bearer {place.token}"},
    )
    try:
        engine.start()
        return engine
    except serve.EngineError as error:
        raise NoEngineError(str(error)) from None


def wait(engine: Any) -> Any:
    """The engine once it answers. Raises NoEngineError."""
    try:
        return engine.wait_ready()
    except Exception as error:
        engine.stop()
        raise NoEngineError(str(error)) from None


def own_target(engine: Any, place: Place) -> Target:
    return Target(engine.url, engine.model, str(place.folder / "engine.log"), str(engine.root / "model"), engine.pid)


def named_target(url: str, api_key_file: str) -> Target:
    """What ENGINE_URL points at, with or without /v1. Raises NoEngineError where no OpenAI-style server answers."""
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"ENGINE_URL = {url!r} is no URL: write http://127.0.0.1:8000")
    request = urllib.request.Request(f"{url}/v1/models")
    if api_key_file:
        request.add_header("authorization", f"Bearer {_key_in(Path(api_key_file))}")
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            model = json.load(reply)["data"][0]["id"]
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoEngineError(f"no engine at {url}: {getattr(error, 'reason', None) or error}") from None
    except (KeyError, TypeError, IndexError):
        raise NoEngineError(f"the engine at {url} names no model under /v1/models") from None
    return Target(url, str(model), api_key_file=api_key_file)


def _key_in(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the engine's key in {path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def kill_core(engine: Any) -> None:
    """kill -9 to the engine's core process: one of our own group, never another."""
    engine.signal(signal.SIGKILL, engine.core_pid())


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lensd_engine_serve", path)
    if spec is None or spec.loader is None:
        raise NoEngineError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
