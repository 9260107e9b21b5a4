"""Real engines that the tests of a run share, each started when a test first asks for it and ended with the run.

All of them send their spans to `engine_otlp_port` with `engine_token`, whether anybody listens there or not: a test that wants the
spans lets its receiver listen there and take that token.
"""

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ENGINE_STARTS_LIMIT, ROOT, engine_starts, serving
from gateway_real import Receiver
from plugged import MIDDLEWARE, plugged

Engine = Any  # tools/engine/serve.py's, which is loaded by its path


@pytest.fixture(scope="session")
def engine_otlp_port() -> int:
    """The port of 127.0.0.1 that the shared engines send their spans to, for a receiver of OTLP/HTTP."""
    port: int = serving.free_port()
    return port


@pytest.fixture(scope="session")
def engine_token() -> str:
    """The bearer token that the shared engines send with their spans."""
    return "token-of-the-shared-engines"


class Starter:
    """Starts an engine of the shared kind, within the limit of starts of a run."""

    def __init__(self, root: Path, logs: Path, otlp_port: int, token: str) -> None:
        self.root, self.logs, self.otlp_port, self.token = root, logs, otlp_port, token

    def run(self, name: str, **given: Any) -> Iterator[Engine]:
        engine = self.start(name, **given)
        try:
            yield engine.wait_ready()
        finally:
            engine.stop()

    def start(self, name: str, *, max_num_seqs: int = 4, options: tuple[str, ...] = (), **given: Any) -> Engine:
        """Start one and return at once; whoever calls this stops it."""
        if len(engine_starts()) >= ENGINE_STARTS_LIMIT:
            pytest.fail(f"the engine {name} would be start {ENGINE_STARTS_LIMIT + 1} of at most {ENGINE_STARTS_LIMIT}", pytrace=False)
        engine = serving.Engine(
            self.root, self.logs / f"{name}.log", max_num_seqs=max_num_seqs, options=("--enable-log-requests", *options),
            otlp_endpoint=f"http://127.0.0.1:{self.otlp_port}/v1/traces", otlp_headers={"authorization": f"Bearer {self.token}"}, **given,
        )  # fmt: skip
        return engine.start()


@pytest.fixture(scope="session")
def engine_starter(engine_dir: Path, tmp_path_factory: pytest.TempPathFactory, engine_otlp_port: int, engine_token: str) -> Starter:
    """For a test that must have an engine to itself, because it kills it: `yield from engine_starter.run("mine")`."""
    return Starter(engine_dir, tmp_path_factory.mktemp("engine"), engine_otlp_port, engine_token)


@pytest.fixture(scope="session")
def engine(engine_starter: Starter) -> Iterator[Engine]:
    """A real vLLM with four slots: serves `tiny-llama`, 512 tokens of context (the model itself has 2048), no key."""
    yield from engine_starter.run("engine")


@pytest.fixture(scope="session")
def records() -> Iterator[Receiver]:
    """What gateways and the middleware in an engine export."""
    receiver = Receiver()
    yield receiver
    receiver.stop()


class Renewed:
    """An engine that a test may kill: `renew` starts another of the same kind at the same port."""

    def __init__(self, starter: Starter, name: str, given: dict[str, Any]) -> None:
        self._starter, self._name, self._given = starter, name, given
        self.engine = starter.start(name, **given)

    def renew(self) -> Engine:
        """The new engine, which has only begun to start."""
        self.engine.stop()
        self.engine = self._starter.start(f"{self._name}-again", port=self.engine.port, **self._given)
        return self.engine

    def ready(self) -> Engine:
        """The engine, a new one where a test has killed the last."""
        return (self.engine if self.engine.running else self.renew()).wait_ready()


@pytest.fixture(scope="session")
def engine_plugged(
    engine_starter: Starter, engine_otlp_port: int, engine_token: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Renewed]:
    """Nine KV-cache blocks for four slots, a queue of 16, a key; plugin, middleware and vLLM's spans tell `engine_otlp_port`.

    Nothing says what it is called: by all three it is `engine.host`.
    """
    options = (
        *MIDDLEWARE, "--num-gpu-blocks-override", "9", "--max-num-queued-reqs", "16", "--enable-per-request-metrics",
    )  # fmt: skip
    environment = plugged(tmp_path_factory.mktemp("installed"), f"http://127.0.0.1:{engine_otlp_port}", LENSD_TOKEN=engine_token)
    given = {"api_key": "sk-of-the-plugged", "options": options, "environment": environment}
    renewed = Renewed(engine_starter, "engine-plugged", given)
    try:
        renewed.engine.wait_ready()
        yield renewed
    finally:
        renewed.engine.stop()


@pytest.fixture(scope="session")
def engine_long(engine_starter: Starter, records: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renewed]:
    """One slot, 32,768 tokens of context, prefilled 512 at a time; wants a key, has an adapter, and our middleware tells `records`."""
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"))
    options = (
        "--max-num-batched-tokens", "512", "--middleware", "lensd_collectors.vllm.middleware.LensdMiddleware",
        "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tiny-adapter={adapter}",
    )  # fmt: skip
    given = {
        "model_dir": "model-32k", "max_model_len": 32_768, "max_num_seqs": 1, "api_key": "sk-of-the-engine", "options": options,
        "environment": {"PYTHONPATH": str(ROOT / "collectors"), "LENSD_OTLP": records.url, "LENSD_ENGINE": "e0"},
    }  # fmt: skip
    renewed = Renewed(engine_starter, "engine-long", given)
    try:
        renewed.engine.wait_ready()
        yield renewed
    finally:
        renewed.engine.stop()


def write_adapter(folder: Path) -> Path:
    """A random LoRA adapter of rank 8 for the tiny model's query projections."""
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none", "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    parts = {"lora_A": [8, 64], "lora_B": [64, 8]}
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight" for layer in range(2) for part in parts]
    size = 8 * 64 * 4
    head = {
        name: {"dtype": "F32", "shape": parts[name.split(".")[-2]], "data_offsets": [number * size, (number + 1) * size]}
        for number, name in enumerate(names)
    }
    chance = random.Random(8)
    values = (chance.uniform(-1, 1) for _ in range(len(names) * 8 * 64))
    text = json.dumps(head).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(struct.pack("<f", v) for v in values))
    return folder
