"""The gateway's guide says what the code says: its tables, its settings and headers, its commands; and its screens are what comes."""

import ast
import http.client
import http.server
import inspect
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT
from lensd_collectors.conventions import TimeoutKind
from lensd_collectors.gateway import app, fleet, keys, metrics, relay, reply, server, timer
from lensd_collectors.gateway.body import LIMIT_NAMES
from lensd_collectors.gateway.config import Act, Degrade, GatewayConfig, Retry, Upstream
from lensd_collectors.gateway.decisions import ANSWERS
from lensd_collectors.gateway.names import Names
from lensd_collectors.gateway.routes import Kind, Routes
from lensd_collectors.gateway.target import TargetState
from lensd_collectors.vllm.middleware import LensdMiddleware

from lensd import supervise
from lensd.config import load

GUIDE = (ROOT / "docs" / "gateway.md").read_text()
README = (ROOT / "README.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", GUIDE, flags=re.M)}
SOURCES = "".join(path.read_text() for path in (ROOT / "collectors/lensd_collectors/gateway").glob("*.py"))
PROSE = re.sub(r"^```.*?^```", "", GUIDE, flags=re.M | re.S)
SPANS = re.findall(r"`([^`\n]+)`", PROSE)
CONFIG = GatewayConfig()
OPENAIS = {"api_key", "finish_reason", "stream_options", "include_usage"}  # words of OpenAI's, with a `_` in them
STOP_S = app.GRACE_S + server.GRACE_S + server.FAREWELL_S


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE, re.M | re.S)


def table(section: str) -> list[list[str]]:
    """The cells of a section's table, without its heading."""
    rows = [line.strip("| ").split(" | ") for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return rows[2:]


def test_the_table_of_answers_is_that_of_the_code() -> None:
    written = [tuple(row[:5]) for row in table("What it answers")]
    assert written == [(str(each.status), f"`{each.code}`", f"`{name}`", each.stage, each.reason) for name, each in ANSWERS.items()]
    assert all(len(row) == 6 and row[5] for row in table("What it answers"))


def test_the_types_of_errors_are_those_of_the_code() -> None:
    for answer in ANSWERS.values():
        if answer.status >= 500:
            assert answer.kind == "server_error"
        elif answer.kind != "invalid_request_error":
            assert f"`{answer.kind}` with {answer.status}" in GUIDE
    assert "`server_error` from 500 on, else `invalid_request_error`" in GUIDE


def test_every_header_that_is_named_exists_and_ours_are_all_named() -> None:
    named = {each.lower() for each in SPANS if re.fullmatch(r"[Xx]-[\w-]+", each)}
    assert [each for each in sorted(named) if f'b"{each}"' not in SOURCES] == []
    said = {row[0].strip("`").lower().encode() for row in table("Headers")}
    assert reply._OURS | {b"retry-after", b"x-should-retry"} == said


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_configuration_loads(text: str, tmp_path: Path) -> None:
    (tmp_path / "lensd.toml").write_text(text)
    config = load(str(tmp_path / "lensd.toml"), environ={}).gateway
    Names(config)
    Routes(config.routes)


def test_every_setting_code_and_event_that_is_named_exists() -> None:
    structs = (GatewayConfig, Upstream, Retry, Degrade, keys.KeyEntry)
    known = {field for struct in structs for field in struct.__struct_fields__} | OPENAIS
    known |= {value for name, each in ANSWERS.items() for value in (name.value, each.code, each.kind)} | {
        each.name for each in metrics.METRICS
    }
    known |= {*TimeoutKind, *Act, *TargetState, *(f"ambiguous_{name}" for name in {"stream"}.union(*LIMIT_NAMES.values()))}
    named = {word for span in SPANS for word in re.findall(r"(?<![\w.-])[a-z]+(?:_[a-z0-9]+)+(?![\w-])", span)}
    assert len(named) > 60
    assert [each for each in sorted(named - known) if f'"{each}"' not in SOURCES] == []


def test_defaults_and_limits_are_those_of_the_code() -> None:
    assert supervise.GRACE_S >= STOP_S, "`lensd up` gives the gateway so much beside drain_timeout_s"
    limits = [(row[0], float(row[1]), row[3]) for row in table("Timeouts")]
    assert limits == [(f"`{kind}_timeout_s`", getattr(CONFIG, f"{kind}_timeout_s"), f"`{kind}`") for kind in TimeoutKind]
    assert [row[0].strip("`") for row in table("Routing")] == list(TargetState)
    waits = ", ".join(f"{CONFIG.retry.first_s * 2**each:g} s" for each in range(CONFIG.retry.most))
    for said in (
        f"the same one after {waits} with jitter",
        f"after 429 and 503 not before {CONFIG.retry.busy_s:g} s",
        f"At most `most` = {CONFIG.retry.most} further attempts",
        f"`drain_timeout_s` ({CONFIG.drain_timeout_s:g})",
        f"served for {app.GRACE_S:g} s more",
        f"`drain_timeout_s` and {STOP_S:g} s before a kill",
        f"below {server.CALLER_KEEP_ALIVE_S} s, after which",
        f"looked at {['', 'once', 'twice', 'three times', 'four times', 'five times'][round(1 / timer.TICK_S)]} a second",
        f"asked again every {['', '', '', '', '', 'five'][int(fleet.REFRESH_S)]} seconds",
        f"up to {relay.MAX_HELD_BYTES >> 20} MiB",
    ):
        assert said in GUIDE


def test_who_waits_for_the_gateway_to_end_waits_long_enough() -> None:
    (text,) = blocks("yaml")
    pod = yaml.safe_load(text)["spec"]
    (container,) = pod["containers"]
    _, slept = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] >= float(slept) + CONFIG.drain_timeout_s + STOP_S
    probed = [container[each]["httpGet"]["path"] for each in ("readinessProbe", "livenessProbe")]
    assert [Routes().find("GET", path).kind for path in probed] == [Kind.READY, Kind.HEALTH]  # type: ignore[union-attr]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["gateway"]
    deployed = load(str(ROOT / "deploy/lensd.toml"), environ={}).gateway
    assert float(compose["stop_grace_period"].removesuffix("s")) >= deployed.drain_timeout_s + STOP_S
    assert "/readyz" in compose["healthcheck"]["test"][-1]


def test_a_proxy_waits_longer_than_the_gateway_and_takes_as_much() -> None:
    (text,) = blocks("nginx")
    assert int(re.search(r"proxy_read_timeout (\d+)s;", text)[1]) > CONFIG.first_byte_timeout_s  # type: ignore[index]
    assert int(re.search(r"client_max_body_size (\d+)m;", text)[1]) << 20 == CONFIG.max_body_bytes  # type: ignore[index]


def commands(text: str) -> list[str]:
    """Command lines in a document's blocks."""
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    return re.findall(r"(?:^|^\$ |\(|\| )(lensd [a-z][^)|\n]*)", code, re.M)


def parse(line: str) -> None:
    """As `lensd` parses it. Raises what it raises for a verb or an option that there is not."""
    import typer

    from lensd.cli.main import _app

    _, *words = shlex.split(line.removesuffix(" &").strip(), comments=True)
    command: Any = typer.main.get_command(_app(words[0]))  # type: ignore[arg-type]
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)


@pytest.mark.parametrize("line", [*commands(GUIDE), *commands(README)])
def test_every_command_parses(line: str) -> None:
    parse(line)


def test_every_verb_that_is_named_exists() -> None:
    import typer

    from lensd.cli.main import _app

    named = {
        (words[1], words[2] if len(words) > 2 else "")
        for text in SPANS + re.findall(r"`([^`\n]+)`", README)
        if (words := text.split())[0] == "lensd"
    }
    assert len(named) > 8
    for verb, below in named:
        command: Any = typer.main.get_command(_app(verb)).commands[verb]  # type: ignore[arg-type,attr-defined]
        wanted = re.split(r"\\?\|", below) if hasattr(command, "commands") and below.islower() else []
        assert [each for each in wanted if each not in command.commands] == []


def test_the_middleware_takes_the_arguments_that_are_shown() -> None:
    (text,) = [each for each in blocks("python") if "LensdMiddleware" in each]
    (call,) = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call) and each.keywords]
    parameters = inspect.signature(LensdMiddleware).parameters
    assert {each.arg for each in call.keywords} <= set(parameters)
    assert "paths" in parameters
    assert f"--middleware {LensdMiddleware.__module__}.{LensdMiddleware.__qualname__}\n" in blocks("sh")[0]


def test_what_it_costs_is_left_to_the_bench() -> None:
    """A figure that is written down here would be wrong after the next run."""
    section = SECTIONS["What it costs"]
    assert re.findall(r"\d", section) == []
    assert re.search(r"^bench-gateway:.*\n\t.*bench/bench_gateway\.py", (ROOT / "Makefile").read_text(), re.M)
    assert {"figures", "ratios", "budgets"} <= json.loads((ROOT / "bench/results/gateway.json").read_text()).keys()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]*)(#[\w-]+)?\)", GUIDE)
    assert len(links) >= 3
    for path, anchor in links:
        page = (ROOT / "docs" / path).read_text() if path else GUIDE
        headings = {"#" + re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in re.findall(r"^#+ (.+)$", page, re.M)}
        assert not anchor or anchor in headings


class Engine(http.server.BaseHTTPRequestHandler):
    """What the guide takes as given: an engine with two models."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._reply({"object": "list", "data": [{"id": "llama-3.1-8b", "max_model_len": 8192}, {"id": "qwen-72b"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        events = [{"choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}]} for each in ("Hel", "lo.")]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        stream = b"".join(b"data: %b\n\n" % json.dumps({"id": "c", "object": "chat.completion.chunk", **each}).encode() for each in events)
        self._reply(stream + b"data: [DONE]\n\n", "text/event-stream")

    def _reply(self, said: Any, content_type: str = "application/json") -> None:
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class House:
    """A folder with the guide's first configuration, in which its commands run; its addresses are other ones than in the guide."""

    def __init__(self, folder: Path, engine: int) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "lensd.toml").write_text(blocks("toml")[0].replace(":8000", f":{engine}"))
        self.gateway: subprocess.Popen[bytes] | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LENSD_")}
        listen = {"LENSD_GATEWAY__LISTEN": f"127.0.0.1:{self.port}", "LENSD_GATEWAY__EXPORT_URL": "http://127.0.0.1:9"}
        self.variables = {**kept, **listen, "HOME": str(folder), "COLUMNS": "200"}

    def run(self, line: str) -> str:
        """What a command of the guide prints."""
        if found := re.fullmatch(r"(\w+)=\$\((.*)\)", line):
            self.variables[found[1]] = self.run(found[2]).strip()
            return ""
        if line == "lensd gateway &":
            self._start()
            return ""
        said, _, piped = line.rpartition(" | ")
        words = [re.sub(r"\$(\w+)", lambda found: self.variables[found[1]], word) for word in shlex.split(piped)]
        if words[0] == "curl":
            return self._ask(words)
        assert words[0] == "lensd"
        given = shlex.split(said)[1] if said else ""
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=self.folder, env=self.variables, input=given, capture_output=True, text=True, timeout=60
        )
        assert done.returncode in (0, 3), done.stderr
        return done.stdout.replace(f"{self.folder}/", "")

    def _start(self) -> None:
        command = [sys.executable, "-m", "lensd", "gateway"]
        self.gateway = subprocess.Popen(command, cwd=self.folder, env=self.variables, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert self.gateway.poll() is None
            try:
                if self._fetch("GET", "/readyz", None, {}).status == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the gateway was not ready in time")

    def _ask(self, words: list[str]) -> str:
        """curl's -s, -i, -H and -d."""
        headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
        body = words[words.index("-d") + 1] if "-d" in words else None
        (url,) = [word for word in words if word.startswith("http://127.0.0.1:8080/")]
        reply = self._fetch("POST" if body else "GET", url.removeprefix("http://127.0.0.1:8080"), body, headers)
        text = reply.read().decode()
        head = [f"HTTP/1.1 {reply.status} {reply.reason}", *(f"{name}: {value}" for name, value in reply.getheaders()), ""]
        return "\n".join([*(head if "-si" in words else []), text]) + "\n"

    def _fetch(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def end(self) -> None:
        if self.gateway is not None:
            self.gateway.send_signal(signal.SIGINT)
            self.gateway.wait(20)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        made = House(tmp_path_factory.mktemp("guide"), engine.server_address[1])
        try:
            yield made
        finally:
            made.end()
            engine.shutdown()


def _plain(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"sk-lensd-\S+", "SECRET", text)
    text = re.sub(r"\.\.\.\S{4}", "...LAST", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT", text)
    text = re.sub(r"^date: .*", "date: NOW", text, flags=re.M)
    return re.sub(r"\b[0-9a-f]{16}(?:[0-9a-f]{16})?\b", "ID", text).rstrip()


def test_the_screens_are_what_the_commands_print(house: House) -> None:
    screens = [screen.partition("\n") for block in blocks("console") for screen in re.split(r"^\$ ", block, flags=re.M)[1:]]
    assert len(screens) >= 9
    for command, _, printed in screens:
        assert _plain(house.run(command)) == _plain(printed), command


def test_the_python_that_is_shown_runs(house: House) -> None:
    """After the screens, which start the gateway."""
    assert house.gateway is not None
    (text,) = [each for each in blocks("python") if "import openai" in each]

    def call(key: str) -> str:
        program = text.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{house.port}")
        done = subprocess.run(
            [sys.executable, "-c", program], env={**house.variables, "KEY": key}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert call(house.variables["KEY"]) == "Hello."
    assert re.match(r"[0-9a-f]{32} gateway Error code: 401", call("sk-proj-of-somebody-else"))
