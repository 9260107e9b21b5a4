"""The proxies that are compared: how each is set up and started in front of the fake engine."""

import http.client
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lensd_collectors.gateway import keys

from gateway import wire
from gateway.process import BenchError, Group

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LITELLM: Final = "1.108.7"
LITELLM_HOME: Final = ROOT / ".bench" / "litellm"
STARTS_WITHIN_S: Final = 90.0

NGINX = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""

LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "http://127.0.0.1:{engine}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{master_key: {key}}}
"""

OURS = """
[gateway]
listen = "127.0.0.1:{port}"
keys_file = "{folder}/keys.toml"
require_key = true
export_url = "http://127.0.0.1:{sink}"
token_file = "{folder}/token"

[[gateway.upstreams]]
name = "engine"
url = "http://127.0.0.1:{engine}"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack is set up."""

    folder: Path
    engine: int  # ports
    sink: int
    core: int


@dataclass(frozen=True, slots=True)
class Stack:
    """One way to the engine that is up: `group` is None for the direct one."""

    name: str
    port: int
    key: str
    group: Group | None

    def request(self, *, wish: str = "", streaming: bool = False) -> bytes:
        return wire.request(self.port, self.key, wish=wish, streaming=streaming)

    def cpu_us(self) -> float:
        if self.group is None:
            return 0.0
        self.group.check()
        return self.group.cpu_us()


def start_direct(place: Place) -> Stack:
    return Stack("direct", place.engine, "none", None)


def start_nginx(place: Place) -> Stack:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise BenchError("nginx is not installed: apt-get install nginx")
    port = _free_port()
    config = place.folder / "nginx.conf"
    config.write_text(NGINX.format(folder=place.folder, port=port, engine=place.engine))
    command = [program, "-p", str(place.folder), "-c", str(config), "-e", str(place.folder / "nginx.error.log"), "-g", "daemon off;"]
    return _started(place, "nginx", port, "none", command, {})


def start_litellm(place: Place) -> Stack:
    make_litellm()
    port, key = _free_port(), "sk-bench"
    config = place.folder / "litellm.yaml"
    config.write_text(LITELLM_CONFIG.format(model=wire.MODEL, engine=place.engine, key=key))
    command = [str(LITELLM_HOME / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    return _started(place, "litellm", port, key, [*command, "--num_workers", "1"], env)


def start_ours(place: Place, profile: Path | None = None) -> Stack:
    port = _free_port()
    secret, entry = keys.new_key("bench", [wire.MODEL])
    keys.append(place.folder / "keys.toml", entry)
    (place.folder / "token").write_text(secrets.token_hex(16))
    (place.folder / "token").chmod(0o600)
    config = place.folder / "lensd.toml"
    config.write_text(OURS.format(folder=place.folder, port=port, engine=place.engine, sink=place.sink))
    profiling = ["-m", "cProfile", "-o", str(profile)] if profile else []
    command = [sys.executable, *profiling, "-m", "lensd", "gateway", "--config", str(config)]
    return _started(place, "ours", port, secret, command, {})


STACKS: Final[dict[str, Callable[[Place], Stack]]] = {
    "direct": start_direct,
    "nginx": start_nginx,
    "litellm": start_litellm,
    "ours": start_ours,
}


def make_litellm() -> None:
    """LiteLLM in an environment of its own, made where it is missing. Raises BenchError where it cannot be had."""
    python = LITELLM_HOME / "bin" / "python"
    wanted = f"litellm[proxy]=={LITELLM}"
    look = [str(python), "-c", f"import importlib.metadata as m, sys; sys.exit(m.version('litellm') != '{LITELLM}')"]
    if python.exists() and subprocess.run(look, capture_output=True, check=False).returncode == 0:
        return
    print(f"bench-gateway: {wanted} into {LITELLM_HOME.relative_to(ROOT)}, once", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", str(LITELLM_HOME)],
        [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "install", wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or "without a word").splitlines()[-1]
            raise BenchError(f"LiteLLM cannot be installed ({said}): python -m venv .bench/litellm, then pip install '{wanted}' in it")


def _started(place: Place, name: str, port: int, key: str, command: list[str], env: dict[str, str]) -> Stack:
    """The stack, once it has answered a request through the engine. Raises BenchError and leaves nothing running where it does not."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LENSD_", "LITELLM_")) and not k.lower().endswith("_proxy")}
    group = Group(name, command, place.core, place.folder / f"{name}.log", cwd=place.folder, env={**kept, **env})
    stack = Stack(name, port, key, group)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not _answers(stack):
            group.check()
            if time.monotonic() > deadline:
                raise BenchError(f"{name} was not up after {STARTS_WITHIN_S:.0f} s: {group.last_words()}")
            time.sleep(0.2)
    except BaseException:
        group.end()
        raise
    return stack


def _answers(stack: Stack) -> bool:
    body = stack.request().partition(wire.HEAD_END)[2]
    headers = {"Authorization": f"Bearer {stack.key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
