"""A real vLLM server on the CPU, of our own: started, waited for, and ended by the pids of its own process group.

Standard library only and complete in itself: tests and `lensd demo` load it by its path. The environment and the model are
what build.py makes.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

READY_LIMIT_S = 240.0
STOP_LIMIT_S = 10.0
NICENESS = 10
"""vLLM's processes spin while they decode: on two cores at equal priority they hold up whoever watches them for seconds.

Linux weighs priorities within a session only (autogroup), so the engine stays in ours, with a process group of its own.
"""
STARTS_FILE = "LENSD_ENGINE_STARTS"
"""Environment variable that names a file; every start, in whatever process, adds a line to it."""


def dtype_options(cpu: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Flags for a processor that says it has AMX: in bfloat16 vLLM 0.32 then takes an attention kernel that ends with an illegal
    instruction at prompts of a few tokens on some virtual machines. In float16, as large, it takes the one of all other processors."""
    try:
        has_amx = "amx_bf16" in cpu.read_text(errors="replace")
    except OSError:
        has_amx = False
    return ("--dtype", "float16") if has_amx else ()


class EngineError(Exception):
    """The engine is not there, did not come up, or died on the way; one line."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def missing(root: Path, model_dir: str = "model") -> str | None:
    """What the folder lacks to start an engine from it; None when it is complete."""
    for part in ("venv/bin/python", f"{model_dir}/config.json"):
        if not (root / part).exists():
            return f"no CPU vLLM in {root.name} ({part} is missing): run `make engine`"
    return None


class Engine:
    """One `vllm serve`. Its processes are a process group of their own, so that nothing else is ever signalled."""

    starts: ClassVar[int] = 0  # in this process

    def __init__(
        self,
        root: Path,
        log: Path,
        *,
        model_dir: str = "model",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        max_num_seqs: int = 4,
        max_model_len: int = 512,
        served_model_name: str = "tiny-llama",
        api_key: str = "",
        port: int = 0,
        otlp_endpoint: str = "",
        otlp_headers: dict[str, str] | None = None,
    ) -> None:
        """`root` is build.py's folder, `model_dir` of a model in it; `otlp_endpoint` the full URL for traces, /v1/traces included."""
        self.root = root.resolve()
        self.log = log
        self.port = port or free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self.model = served_model_name
        self.api_key = api_key
        self.otlp_endpoint = otlp_endpoint
        self.otlp_headers = otlp_headers or {}
        self.model_dir = model_dir
        self.environment = dict(environment or {})  # beside what it always gets; it inherits no PYTHONPATH
        self.arguments = [
            *("serve", str(self.root / model_dir), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--served-model-name", served_model_name, "--max-model-len", str(max_model_len)),
            *("--max-num-seqs", str(max_num_seqs), "--enforce-eager"),
            *dtype_options(),
            *(("--otlp-traces-endpoint", otlp_endpoint) if otlp_endpoint else ()),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._ended = False  # once its group is empty the system may give the number to another

    def start(self) -> Self:
        """Start it and return at once; `wait_ready` waits. Raises EngineError where the folder is not complete."""
        lack = missing(self.root, self.model_dir)
        if lack:
            raise EngineError(lack)
        if self._process:
            raise EngineError(f"this engine was started before (pid {self._process.pid})")
        self._scratch = Path(tempfile.mkdtemp(prefix="lensd-engine-"))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [str(self.root / "venv/bin/python"), "-m", "vllm.entrypoints.cli.main", *self.arguments]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                cwd=self._scratch, env=self._environment(self._scratch), process_group=0,
            )  # fmt: skip
        os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)  # its children inherit it
        Engine.starts += 1
        if os.environ.get(STARTS_FILE):
            with open(os.environ[STARTS_FILE], "a") as counted:
                counted.write(f"{self.host} {' '.join(self.arguments)}\n")
        return self

    def _environment(self, scratch: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "OTEL_", "VLLM_"))}
        made = {
            **kept,
            "PATH": f"{self.root / 'venv/bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "TMPDIR": str(scratch),  # vLLM leaves a vllm_dist_* file at every start: here it goes with the folder
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        if self.api_key:
            made["VLLM_API_KEY"] = self.api_key  # in a flag every process listing would show it
        if self.otlp_endpoint:
            made["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
            made["OTEL_BSP_SCHEDULE_DELAY"] = "500"
        if self.otlp_headers:
            headers = (f"{name}={quote(value)}" for name, value in self.otlp_headers.items())
            made["OTEL_EXPORTER_OTLP_TRACES_HEADERS"] = ",".join(headers)
        return made | self.environment

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> Self:
        """Return when /health answers 200. Raises EngineError when it died or took longer, with what its log says."""
        until = time.monotonic() + limit_s
        while not self.healthy():
            if self._process is None or self._process.poll() is not None:
                raise EngineError(f"the engine died while starting: {self._last_words()} (log: {self.log})")
            if time.monotonic() > until:
                raise EngineError(f"the engine was not ready after {limit_s:.0f} s: {self._last_words()} (log: {self.log})")
            time.sleep(0.25)
        return self

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _last_words(self) -> str:
        """The log's last line that names an error, else its last line."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        telling = [line for line in lines[-200:] if "Error" in line and "See root cause" not in line] or lines or ["nothing in its log"]
        return telling[-1].strip()[:300]

    @property
    def pid(self) -> int:
        """The API server's pid; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """The API server has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> dict[int, str]:
        """Pids of the engine's own group with their titles: the API server, VLLM::EngineCore, VLLM::Worker and their helpers."""
        return dict(_group(self.pid)) if self.pid and not self._ended else {}

    def core_pid(self) -> int:
        """The pid of VLLM::EngineCore. Raises EngineError when there is none."""
        for pid, title in self.processes().items():
            if "EngineCore" in title:
                return pid
        raise EngineError(f"no VLLM::EngineCore among the engine's processes (log: {self.log})")

    def signal(self, number: int, *pids: int) -> None:
        """Send a signal to some of its processes, or to all; a pid that is not its own is refused."""
        own = self.processes()
        for pid in pids or tuple(own):
            if pid not in own:
                raise EngineError(f"pid {pid} is not one of this engine's")
            _send(pid, number)

    def kill(self) -> None:
        """kill -9 to all of it at once, as the kernel's OOM killer or a lost node would; leftovers are for `stop`."""
        self.signal(signal.SIGKILL)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """All of it stopped (SIGSTOP) within the with block and going on (SIGCONT) after it: a hang."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, politely first, and take away what it left behind. Stopping twice is no error."""
        if self._process is None or self._ended:
            return
        if self._process.poll() is None:
            _send(self.pid, signal.SIGCONT)
            _send(self.pid, signal.SIGTERM)
            _until(lambda: self._process is None or self._process.poll() is not None, STOP_LIMIT_S / 2)
        # the API server may hang on an open stream, and its children outlive it when it was killed
        for pid in self.processes():
            _send(pid, signal.SIGKILL)
        self._process.wait(STOP_LIMIT_S)
        _until(lambda: not self.processes(), STOP_LIMIT_S)
        self._ended = not self.processes()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start().wait_ready()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _group(group: int) -> Iterator[tuple[int, str]]:
    """Pid and title of every living process of a process group, read from /proc."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # the name in parentheses may hold spaces: state, parent and group follow the last one
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, ValueError):
            continue
        if int(of_group) == group and state not in "ZX":
            yield int(entry.name), title


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _until(done: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
