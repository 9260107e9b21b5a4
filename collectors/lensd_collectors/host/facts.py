"""How an engine is set up: what its model list, its model's config.json and its start-up log lines say, as `lensd.config` events."""

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.engine import Engine, Fetch, FetchError
from lensd_collectors.read import settings
from lensd_collectors.read.flags import read_model_config
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact
from lensd_collectors.scrub import scrub

ARGS_MARK: Final = "non-default args: "
LENGTH_LINE: Final = re.compile(r"Using max model len (\d+)\b")
MOST_CONFIG_BYTES: Final = 4 * 1024 * 1024


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None  # set for a LoRA adapter
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


def from_models(body: bytes) -> tuple[dict[str, str], str]:
    """Facts in a `/v1/models` answer, and the model's root as it stands there ("" where none does). No answer of that form: none."""
    try:
        cards = [card for card in msgspec.json.decode(body, type=_Cards).data if not card.parent]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}, ""
    facts: dict[str, str] = {}
    if cards:
        facts["served_model_name"] = " ".join(card.id for card in cards)
    lengths = {card.max_model_len for card in cards if card.max_model_len is not None}
    if len(lengths) == 1:
        facts["max_model_len"] = str(lengths.pop())
    return facts, next((card.root for card in cards if card.root), "")


def from_model_dir(folder: Path) -> dict[str, str]:
    """What a model folder's config.json says; nothing where it can't be read."""
    try:
        with (folder / "config.json").open("rb") as file:
            text = file.read(MOST_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    rows = read_model_config(text, name="config.json").rows
    return {row.name: row.value for row in rows if isinstance(row, ConfigFact) and row.name is not None and row.value is not None}


def from_line(line: str) -> tuple[dict[str, str], Origin]:
    """Facts in one start-up line of vLLM's log, and whose word they are; arguments whose name speaks of a key are left out."""
    found = LENGTH_LINE.search(line)
    if found:
        return {"max_model_len": found[1]}, Origin.EFFECTIVE
    _, mark, text = line.partition(ARGS_MARK)
    return settings.from_dict_text(scrub(text.strip())) if mark else {}, Origin.FLAG


class Facts:
    """Sends what is known of an engine's set-up, at each of its starts."""

    def __init__(self, engine: Engine, exporter: Exporter, fetch: Fetch, clock_ns: Callable[[], int]) -> None:
        self._engine, self._exporter, self._fetch, self._clock_ns = engine, exporter, fetch, clock_ns

    def engine_started(self) -> None:
        """Asks a freshly started engine for its models and reads its model's config; what it does not say stays unknown."""
        facts: dict[str, str] = {}
        root = ""
        with contextlib.suppress(FetchError):
            facts, root = from_models(self._fetch(self._engine, "/v1/models"))
        self.send(facts, Origin.EFFECTIVE)
        for folder in (self._engine.model_dir, root):
            shape = from_model_dir(Path(folder)) if folder else {}
            if shape:
                self.send(shape, Origin.MODEL)
                break

    def line(self, line: str) -> None:
        """Sends the facts that stand in a log line."""
        if ARGS_MARK in line or "Using max model len" in line:
            self.send(*from_line(line))

    def send(self, facts: Mapping[str, str], origin: Origin) -> None:
        at_ns = self._clock_ns()
        for name, value in facts.items():
            attributes = {
                **self._engine.attributes,
                conventions.FACT_SUBJECT: self._engine.name,
                conventions.FACT_NAME: name,
                conventions.FACT_VALUE: value,
                conventions.FACT_ORIGIN: origin.value,
            }
            self._exporter.event(conventions.EVENT_CONFIG, at_ns=at_ns, attributes=attributes)
