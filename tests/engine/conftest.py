"""Three real engines that the tests of a run share, each started when a test first asks for it and ended with the run.

All three send their spans to `engine_otlp_port` with `engine_token`, whether anybody listens there or not: a test that wants the
spans lets its receiver listen there and take that token.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ENGINE_STARTS_LIMIT, engine_starts, serving

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

    def run(self, name: str, *, max_num_seqs: int = 4, options: tuple[str, ...] = ()) -> Iterator[Engine]:
        if len(engine_starts()) >= ENGINE_STARTS_LIMIT:
            pytest.fail(f"the engine {name} would be start {ENGINE_STARTS_LIMIT + 1} of at most {ENGINE_STARTS_LIMIT}", pytrace=False)
        engine = serving.Engine(
            self.root, self.logs / f"{name}.log", max_num_seqs=max_num_seqs, options=("--enable-log-requests", *options),
            otlp_endpoint=f"http://127.0.0.1:{self.otlp_port}/v1/traces", otlp_headers={"authorization": f"Bearer {self.token}"},
        )  # fmt: skip
        try:
            yield engine.start().wait_ready()
        finally:
            engine.stop()


@pytest.fixture(scope="session")
def engine_starter(engine_dir: Path, tmp_path_factory: pytest.TempPathFactory, engine_otlp_port: int, engine_token: str) -> Starter:
    """For a test that must have an engine to itself, because it kills it: `yield from engine_starter.run("mine")`."""
    return Starter(engine_dir, tmp_path_factory.mktemp("engine"), engine_otlp_port, engine_token)


@pytest.fixture(scope="session")
def engine(engine_starter: Starter) -> Iterator[Engine]:
    """A real vLLM with four slots: serves `tiny-llama`, 512 tokens of context (the model itself has 2048), no key."""
    yield from engine_starter.run("engine")


@pytest.fixture(scope="session")
def engine_one_slot(engine_starter: Starter) -> Iterator[Engine]:
    """The same with one slot: a second request waits in the queue."""
    yield from engine_starter.run("engine-one-slot", max_num_seqs=1)


@pytest.fixture(scope="session")
def engine_nine_blocks(engine_starter: Starter) -> Iterator[Engine]:
    """The same with nine KV-cache blocks (1,152 tokens): four long requests preempt each other."""
    yield from engine_starter.run("engine-nine-blocks", options=("--num-gpu-blocks-override", "9"))
