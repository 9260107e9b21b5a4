"""How an engine is set up: what its model list, its model's config.json and its start-up log lines say, as `lensd.config` events."""

import ast
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.engine import Engine, Fetch, FetchError
from lensd_collectors.scrub import scrub

ARGS_MARK: Final = "non-default args: "
LENGTH_LINE: Final = re.compile(r"Using max model len (\d+)\b")
SECRET_NAME: Final = re.compile(r"key(?!s?_?cache)|token$|secret|password|credential", re.IGNORECASE)
MOST_ARGS_CHARS: Final = 64 * 1024
MOST_VALUE_CHARS: Final = 500
MOST_CONFIG_BYTES: Final = 4 * 1024 * 1024


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None  # set for a LoRA adapter
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


class _TextConfig(msgspec.Struct):
    max_position_embeddings: int | None = None


class _ModelConfig(msgspec.Struct):
    max_position_embeddings: int | None = None
    text_config: _TextConfig | None = None


def from_models(body: bytes) -> tuple[dict[str, str], str]:
    """Facts in a `/v1/models` answer, and the model's root as it stands there ("" where none does). No answer of that form: none."""
    try:
        cards = [card for card in msgspec.json.decode(body, type=_Cards).data if not card.parent]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}, ""
    facts: dict[str, str] = {}
    if cards:
        facts["served_model_name"] = ", ".join(card.id for card in cards)
    lengths = {card.max_model_len for card in cards if card.max_model_len is not None}
    if len(lengths) == 1:
        facts["max_model_len"] = str(lengths.pop())
    return facts, next((card.root for card in cards if card.root), "")


def from_model_dir(folder: Path) -> dict[str, str]:
    """max_position_embeddings out of a model folder's config.json; nothing where it can't be read."""
    try:
        with (folder / "config.json").open("rb") as file:
            config = msgspec.json.decode(file.read(MOST_CONFIG_BYTES), type=_ModelConfig)
    except (OSError, ValueError, msgspec.DecodeError):
        return {}
    length = config.max_position_embeddings
    if length is None and config.text_config is not None:
        length = config.text_config.max_position_embeddings
    return {} if length is None else {"max_position_embeddings": str(length)}


def from_line(line: str) -> dict[str, str]:
    """Facts in one start-up line of vLLM's log; the arguments whose name speaks of a key are left out."""
    found = LENGTH_LINE.search(line)
    if found:
        return {"max_model_len": found[1]}
    _, mark, text = line.partition(ARGS_MARK)
    if not mark or len(text) > MOST_ARGS_CHARS:
        return {}
    given = {name: value for name, value in _arguments(text.strip()).items() if not SECRET_NAME.search(name)}
    return {name: scrub(_text(value))[:MOST_VALUE_CHARS] for name, value in given.items()}


def _arguments(text: str) -> Mapping[str, object]:
    """The dict that the text is. Values that are no literals are taken as their text; if it is no expression at all, plain values only."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        plain = re.findall(r"'(\w+)': (-?\d+(?:\.\d+)?|True|False|None|'[^'\\]*')(?=[,}])", text)
        return {name: ast.literal_eval(value) for name, value in plain}
    if not isinstance(tree, ast.Dict):
        return {}
    return {
        key.value: _literal(value)
        for key, value in zip(tree.keys, tree.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(node)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value)
    return str(value)


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
        for folder in (self._engine.model_dir, root):
            shape = from_model_dir(Path(folder)) if folder else {}
            if shape:
                facts |= shape
                break
        self.send(facts)

    def line(self, line: str) -> None:
        """Sends the facts that stand in a log line."""
        if ARGS_MARK in line or "Using max model len" in line:
            self.send(from_line(line))

    def send(self, facts: Mapping[str, str]) -> None:
        at_ns = self._clock_ns()
        for name, value in facts.items():
            attributes = {
                **self._engine.attributes,
                conventions.FACT_SUBJECT: self._engine.name,
                conventions.FACT_NAME: name,
                conventions.FACT_VALUE: value,
            }
            self._exporter.event(conventions.EVENT_CONFIG, at_ns=at_ns, attributes=attributes)
