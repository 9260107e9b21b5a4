"""A column of a table that people keep or export: by its name, its statistic and its unit → what it measures."""

import re
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final, NamedTuple

from lensd_collectors.dialects import load
from lensd_collectors.read.cells import BINARY, DECIMAL

ANSWERS: Final = "lensd.http.answers"
LATENCY: Final = "lensd.latency."
_MILLISECONDS: Final = {
    "ms": 1.0, "millis": 1.0, "milliseconds": 1.0, "millisekunden": 1.0, "毫秒": 1.0,
    "s": 1e3, "sec": 1e3, "secs": 1e3, "seconds": 1e3, "sekunden": 1e3, "sek": 1e3, "秒": 1e3,
    "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ns": 1e-6,
}  # fmt: skip
_SHARES: Final = {"%": 0.01, "pct": 0.01, "percent": 0.01, "prozent": 0.01, "ratio": 1.0, "share": 1.0, "anteil": 1.0, "占比": 1.0}
_OTHERS: Final = {"mhz": 1.0, "ghz": 1000.0, "w": 1.0, "watt": 1.0, "watts": 1.0, "c": 1.0, "°c": 1.0, "celsius": 1.0}
_RATES: Final = {"s": 1.0, "sec": 1.0, "second": 1.0, "sekunde": 1.0, "min": 60.0, "minute": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}
_PER: Final = {"rps": 1.0, "qps": 1.0, "rpm": 60.0, "qpm": 60.0}
_STATISTIC: Final = re.compile(r"p\d{2,3}|\d{2}%|q\d{2}|mean|median|avg|average|max|min|mittel|durchschnitt|平均|中位数")
_TOTAL: Final = ("total", "sum", "cumulative", "insgesamt", "gesamt", "累计")
_PRODUCTS: Final = frozenset(
    {"vllm", "sglang", "trtllm", "llamacpp", "tgi", "litellm", "nginx", "gateway", "http", "status", "num", "count", "n", "response"}
    | {"responses", "code", "codes", "answers"}
)
_CARD: Final = re.compile(r"(?:gpu|cuda|card|karte|显卡)(?P<index>\d*)")
_CARD_ONLY: Final = ("vram", "fb", "sm", "显存")
_BRACKETS: Final = re.compile(r"(?P<name>.+?)\s*[\[(（](?P<unit>[^\[\]()（）]*)[\])）]\s*")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SLASHED: Final = re.compile(r"\s*/\s*(?=(?:s|sec|second|sekunde|min|minute|m|h|hour)\b)")
_WORD: Final = re.compile(r"\d{2}%|[^\W_]+|%|°C")
_CLASS: Final = re.compile(r"(?P<class>[2-5])(?:xx|\d\d)")
LONGEST: Final = 200  # characters of a column's name
MOST_NAMES: Final = 4096  # remembered


class Table(StrEnum):
    ENGINE = "engine_samples"
    CARD = "gpu_samples"
    POINT = "points"


class Measure(NamedTuple):
    """`column`: of the table, or a point's name. `factor`: to its own unit; None where the name does not say which unit it has."""

    table: Table
    column: str
    factor: float | None = 1.0
    labels: tuple[tuple[str, str], ...] = ()


class Spelled(NamedTuple):
    """A name taken apart: what is left of it without signs, its words, the statistic, the unit, and the seconds that it counts per."""

    name: str
    words: tuple[str, ...]
    statistic: str = ""
    unit: str = ""
    per: float | None = None
    is_total: bool = False
    whole: str = ""  # with its statistic


@lru_cache(MOST_NAMES)
def is_when(name: str) -> bool:
    """Whether a column holds the instant of its row.

    >>> is_when("Zeit"), is_when("time (utc)"), is_when("request_time")
    (True, True, False)
    """
    spelled = " ".join(_WORD.findall(name.strip().lower()))
    return spelled in _names("columns_when").get("at", frozenset()) or spelled == "timestamp utc"


@lru_cache(MOST_NAMES)
def measure_of(name: str) -> Measure | None:
    """What a column measures; None for one that is not known.

    >>> measure_of("TTFT p95 (s)")
    Measure(table=<Table.POINT: 'points'>, column='lensd.latency.ttft_p95', factor=1000.0, labels=())
    >>> measure_of("gpu0_mem_used_mib").labels, measure_of("5xx/min").labels
    ((('gpu', '0'),), (('class', '5xx'), ('per', '60')))
    """
    if len(name) > LONGEST or not name.strip():
        return None
    spelled = spell(name)
    return _engine(spelled) or _card(spelled) or _host(spelled) or _latency(spelled) or _answers(spelled)


def spell(name: str) -> Spelled:
    """A name as people write it, taken apart.

    >>> spell("p95_ttft_ms")[2:4], spell("KV-Cache-Auslastung [%]")[0], spell("arrivals_per_min").per
    (('p95', 'ms'), 'kvcacheauslastung', 60.0)
    """
    bare = name.strip().strip('"').rpartition(":")[2]
    bracketed = _BRACKETS.fullmatch(bare)
    outer = bracketed["unit"].strip().lower() if bracketed else ""
    words = _WORD.findall(_HUMP.sub(" ", _SLASHED.sub(" per ", bracketed["name"] if bracketed else bare)).lower())
    words += [*_WORD.findall(_SLASHED.sub(" per ", outer))] if outer else []
    per, unit = None, ""
    if len(words) > 2 and words[-2] in ("per", "pro", "je") and words[-1] in _RATES:
        per, words = _RATES[words[-1]], words[:-2]
    elif len(words) > 1 and words[-1] in _PER:
        per, words = _PER[words[-1]], words[:-1]
    whole = "".join(words)
    statistic = next((f"p{word[:2]}" if word[0].isdigit() else word for word in words if _STATISTIC.fullmatch(word)), "")
    words = [word for word in words if not _STATISTIC.fullmatch(word)]
    if len(words) > 1 and any(words[-1] in units for units in (_SHARES, _MILLISECONDS, _OTHERS, BINARY, DECIMAL)):
        unit, words = words[-1], words[:-1]
    if words[-1:] == ["perc"] and len(words) > 1:  # of a metric that says percent and counts to one
        words = words[:-1]
    is_total = len(words) > 1 and any(word in _TOTAL for word in words)
    return Spelled("".join(words), tuple(words), statistic, unit, per, is_total, whole)


@cache
def _names(section: str) -> dict[str, frozenset[str]]:
    return {key: frozenset(names) for key, names in load()["tables"].columns.get(section, {}).items()}


@cache
def _engines() -> dict[str, str]:
    """Names, without signs and product, of what the engines' scrapes show and of what people call it → column."""
    found = {name: column for column, names in _names("columns").items() for name in names}
    for dialect in load().values():
        for column, names in dialect.metrics.items():
            for name in names:
                if re.fullmatch(r"[\w:]+", name):
                    found.setdefault("".join(_without(spell(name).words)), column)
    return found


def _without(words: tuple[str, ...]) -> list[str]:
    return [word for at, word in enumerate(words) if at or word not in _PRODUCTS]


def _engine(spelled: Spelled) -> Measure | None:
    column = next(
        (found for one in (spelled.whole, spelled.name, "".join(_without(spelled.words))) if (found := _engines().get(one))), None
    )
    if column is None or (spelled.unit in _MILLISECONDS and not column.endswith("_tps")):
        return None
    if column.endswith("_tps"):
        per = spelled.per or (1.0 if spelled.unit == "s" or spelled.name.endswith(("tps", "throughput", "toks")) else None)
        return Measure(Table.ENGINE, column, 1 / per) if per and spelled.unit in ("", "s") else None
    if spelled.per is not None:
        return None
    if column == "kv_usage":
        return Measure(Table.ENGINE, column, _SHARES.get(spelled.unit))
    return Measure(Table.ENGINE, column) if not spelled.unit else None


def _card(spelled: Spelled) -> Measure | None:
    index, words = None, list(spelled.words)
    for at, word in enumerate(words):
        if match := _CARD.fullmatch(word):
            index = match["index"] or (words.pop(at + 1) if words[at + 1 : at + 2] and words[at + 1].isdigit() else "")
            words.pop(at)
            break
    if index is None and not (words and words[0].startswith(_CARD_ONLY)):
        return None
    name = "".join(words)
    column = next((column for column, names in _names("columns_of_cards").items() if name in names), None)
    if column is None:
        return None
    unit = spelled.unit
    if column.endswith("_bytes"):
        factor = _bytes(unit)
        if unit and factor is None:
            return None
    elif column == "util":
        factor = _SHARES.get(unit) if unit else None
    else:
        factor = _OTHERS.get(unit, 1.0)
    return Measure(Table.CARD, column, factor, (("gpu", index or "#0"),))


def _host(spelled: Spelled) -> Measure | None:
    """What the host has left, and the resident set of a process that the name calls."""
    factor = _bytes(spelled.unit)
    if factor is None:
        return None
    if "rss" in spelled.words:
        process = "_".join(word for word in spelled.words if word not in ("rss", "mem", "memory"))
        return Measure(Table.CARD, "rss_bytes", factor, (("process", process or "process"),))
    name = next((point for point, names in _names("columns_of_hosts").items() if spelled.name in names), None)
    return Measure(Table.POINT, name, factor) if name else None


def _bytes(unit: str) -> float | None:
    """Bytes of a unit as drivers and kernels mean it: MB is 2^20."""
    return BINARY.get(unit) or BINARY.get(unit.replace("b", "ib"))


def _latency(spelled: Spelled) -> Measure | None:
    factor = _MILLISECONDS.get(spelled.unit)
    name = "".join(_without(spelled.words))
    what = next((what for what, names in _names("columns_of_latency").items() if name in names or spelled.name in names), None)
    if what is None or factor is None or not spelled.statistic or spelled.per is not None:
        return None
    return Measure(Table.POINT, f"{LATENCY}{what}_{spelled.statistic}", factor)


def _answers(spelled: Spelled) -> Measure | None:
    """A count of answers by their class; `per` in its labels: seconds of a rate, `total` of a counter, else of the row's interval."""
    if spelled.unit in _MILLISECONDS or spelled.statistic:
        return None
    words = [word for word in spelled.words if word not in _PRODUCTS and word not in _TOTAL]
    name = "".join(words)
    code = _CLASS.fullmatch(name)
    kind = f"{code['class']}xx" if code else next((kind for kind, names in _names("columns_of_answers").items() if name in names), None)
    if kind is None or (spelled.unit and spelled.unit not in _SHARES):
        return None
    per = "share" if spelled.unit in _SHARES else f"{spelled.per:g}" if spelled.per else "total" if spelled.is_total else "interval"
    return Measure(Table.POINT, ANSWERS, _SHARES.get(spelled.unit, 1.0), (("class", kind), ("per", per)))
