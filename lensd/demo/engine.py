"""The demo's engine: a small real vLLM built in the checkout, or one that somebody names."""

import importlib.util
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

from lensd.demo.place import Place, Target
from lensd.errors import EvidenceError

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
    """What ENGINE_URL points at. Raises NoEngineError where no OpenAI-style server answers."""
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models")
    if api_key_file:
        request.add_header("authorization", f"Bearer {Path(api_key_file).read_text().strip()}")
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            models = json.load(reply)["data"]
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        raise NoEngineError(f"no engine at {url}: {getattr(error, 'reason', error)}") from None
    if not models:
        raise NoEngineError(f"the engine at {url} serves no model")
    return Target(url.rstrip("/"), models[0]["id"], api_key_file=api_key_file)


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
