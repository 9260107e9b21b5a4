"""What the gateway would make of a key, a path and a model, step by step, in the order in which it looks at them."""

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from enum import StrEnum
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.heads import Header, read_heads
from lensd_collectors.gateway.keyring import Key, KeyRing, Presented
from lensd_collectors.gateway.names import Names, nearest
from lensd_collectors.gateway.routes import CHAT, Routes, shown
from lensd_collectors.gateway.survey import Served

_DRESSED: Final = re.compile(r"(?:-H|--header)[ =]?\s*(?P<quote>['\"]?)(?P<option>.*)(?P=quote)(?:\s*\\)?|>\s*(?P<trace>.*)")
_HEADER_FAULTS: Final = (Decision.KEY_MISSING, Decision.KEY_MALFORMED, Decision.KEY_WRONG_HEADER)


class StepState(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Step(msgspec.Struct, frozen=True):
    name: str
    state: StepState
    text: str


class Answer(msgspec.Struct, frozen=True):
    """What the caller would get, and what the record would hold. `is_sure`: no step before it is unknown."""

    status: int
    code: str
    type: str
    message: str
    decision: Decision
    reason: str
    is_sure: bool


class Explanation(msgspec.Struct, frozen=True):
    """`result`: refused if any step is, else unknown if any is. Without an answer the request goes on to an engine, or nobody can say."""

    key_id: str
    model: str
    route: str
    result: StepState
    steps: tuple[Step, ...]
    answer: Answer | None


class Question(msgspec.Struct, frozen=True):
    """Who asks for what: the key by its id, or by the headers that a client sent. Without a model, only the key is looked at."""

    key_id: str = ""
    presented: Presented | None = None
    model: str = ""
    route: str = CHAT


def explain(asked: Question, ring: KeyRing, config: GatewayConfig, served: Served, now_ns: int) -> Explanation:
    """`served` is what the engines say that they serve, `now_ns` wall time. Raises GatewayError for a configuration that cannot work."""
    course = _Course()
    key = _explain_request(course, asked, ring, config, now_ns)
    if asked.model:
        _explain_model(course, asked.model, key, config, served)
    if key is not None:
        limits = ", ".join(key.entry.limits())
        course.ok("limits", f"{limits}; only the running gateway knows how much of them is used up" if limits else "none")
    return Explanation(
        key_id=asked.key_id if key is None else key.id,
        model=asked.model,
        route=asked.route,
        result=course.result,
        steps=tuple(course.steps),
        answer=course.answer,
    )


def read_presented(text: str) -> Presented:
    """What a gateway would see of pasted headers: one a line, `Name: value`; or the value of Authorization alone."""
    lines = [_undressed(line.strip()) for line in text.splitlines() if line.strip()]
    headers = [header for line in lines if (header := _header(line))]
    if lines and (not headers or headers[0][0] == b"bearer"):
        headers = [(b"authorization", lines[0].encode())]
    return read_heads(headers).presented


def _undressed(line: str) -> str:
    """Without what curl's command line (`-H '...'`) and its -v (`> ...`) put around a header."""
    found = _DRESSED.fullmatch(line)
    return line if found is None else found["option"] or found["trace"]


def _header(line: str) -> Header | None:
    name, colon, value = line.partition(":")
    if not colon or not name.replace("-", "").isalnum():
        return None
    return name.lower().encode(), value.strip().encode()


class _Course:
    """The steps so far, and the answer that the first refused one gives."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.answer: Answer | None = None

    @property
    def result(self) -> StepState:
        states = [step.state for step in self.steps]
        return next((state for state in (StepState.REFUSED, StepState.UNKNOWN) if state in states), StepState.OK)

    def ok(self, name: str, text: str) -> None:
        self.steps.append(Step(name, StepState.OK, text))

    def unknown(self, name: str, text: str) -> None:
        self.steps.append(Step(name, StepState.UNKNOWN, text))

    def refused(self, name: str, refusal: Refused, text: str = "") -> None:
        if self.answer is None:
            self.answer = Answer(
                status=refusal.status,
                code=refusal.code,
                type=refusal.answer.kind,
                message=refusal.message,
                decision=refusal.decision,
                reason=refusal.reason,
                is_sure=all(step.state is StepState.OK for step in self.steps),
            )
        self.steps.append(Step(name, StepState.REFUSED, text or refusal.reason))

    def check(self, name: str, text: str, run: Callable[[], object]) -> None:
        """A step that the gateway's own code decides."""
        try:
            run()
        except Refused as refusal:
            self.refused(name, refusal)
        else:
            self.ok(name, text)


def _explain_request(course: _Course, asked: Question, ring: KeyRing, config: GatewayConfig, now_ns: int) -> Key | None:
    """Path and key; the key where it is known."""
    routes = Routes(config.routes)
    method = routes.allowed(asked.route).partition(",")[0] or "POST"
    route = routes.find(method, asked.route)
    path = shown(asked.route)
    if isinstance(route, Refused):
        course.refused("path is served", route)
    else:
        path = route.template
        course.ok("path is served", f"{method} {path}")
    key = _explain_key(course, asked, ring)
    if key is None:
        return None
    expires = key.entry.expires
    course.check(
        "key valid", f"until {expires.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if expires else "for ever", lambda: key.check(now_ns)
    )
    allowed = ", ".join(key.entry.routes)
    if key.allows_route(path):
        course.ok("path may be used", f"its routes are {allowed}" if allowed else "any path")
    else:
        refusal = Refused(Decision.ROUTE_NOT_ALLOWED, reason=f"key {key.id} may not use {path}")
        course.refused("path may be used", refusal, f"its routes are {allowed}")
    return key


def _explain_key(course: _Course, asked: Question, ring: KeyRing) -> Key | None:
    """The key in the header; the one that is named where there is no header, or none that can be read."""
    if asked.presented is None:
        course.ok("header form", "not shown; taken as 'Authorization: Bearer KEY'")
    else:
        try:
            key = ring.find(asked.presented)
        except Refused as refusal:
            if refusal.decision in _HEADER_FAULTS:
                course.refused("header form", refusal)
            else:
                course.ok("header form", "'Authorization: Bearer KEY'")
                course.refused("key known", refusal)
                return None
        else:
            course.ok("header form", "'Authorization: Bearer KEY'")
            other = f"; it is not {asked.key_id}" if asked.key_id not in ("", key.id) else ""
            course.ok("key known", _known(key) + other)
            return key
    if not asked.key_id:
        return None
    if (named := ring.get(asked.key_id)) is not None:
        course.ok("key known", _known(named))
        return named
    near = difflib.get_close_matches(asked.key_id, ring.ids, 1)
    course.refused("key known", Refused(Decision.KEY_UNKNOWN), f"no key has this id{f'; did you mean {near[0]}?' if near else ''}")
    return None


def _known(key: Key) -> str:
    return f"{key.id}, ...{key.entry.last4}" if key.entry.last4 else key.id


def _explain_model(course: _Course, name: str, key: Key | None, config: GatewayConfig, served: Served) -> None:
    """A scope is held against the model that is asked in the end, whatever the caller calls it."""
    names = Names(config)
    aliases, fallback = names.aliases, names.fallback(name)
    model = aliases.get(name, name)
    called = f"{shown(name)} is an alias of {model}" if model != name else shown(name)
    if model in served.models:
        course.ok("model exists", called)
    elif fallback in served.models and (key is None or (key.allows(model) and key.allows(fallback))):
        course.ok("model exists", f"{called}; while no engine has it, its fallback {fallback} answers")
    elif served.is_complete:
        listed = ", ".join(sorted(served.models)) or "none"
        course.refused("model exists", _unknown(name, key, aliases, served), f"{called} is not served; served are {listed}")
    else:
        course.unknown("model exists", f"{called}; not every engine has said what it serves: {'; '.join(served.silent)}")
    if key is None:
        return
    scope = f"its models are {', '.join(key.entry.models) or 'none'}"
    reason = f"key {key.id} may not use {model}"
    if key.allows(model):
        course.ok("key may use it", scope)
    elif config.deny_as == 403:
        course.refused("key may use it", Refused(Decision.MODEL_NOT_ALLOWED, reason=reason, param="model"), scope)
    else:
        message = _unknown(name, key, aliases, served).message
        refusal = Refused(Decision.MODEL_NOT_ALLOWED, message, reason=reason, param="model", shown_as=Decision.MODEL_UNKNOWN)
        course.refused("key may use it", refusal, f"{scope}; deny_as = 404 makes it look unknown")


def _unknown(name: str, key: Key | None, aliases: Mapping[str, str], served: Served) -> Refused:
    """As the gateway's fleet says it."""
    callable_names = [each for each in sorted(served.models) if each not in aliases] + [
        each for each in aliases if aliases[each] in served.models
    ]
    near = nearest(name, (each for each in callable_names if key is None or key.allows(aliases.get(each, each))))
    hint = f"; did you mean `{near}`?" if near is not None else ""
    return Refused(Decision.MODEL_UNKNOWN, f"the model `{shown(name)}` is not served here{hint}", param="model")
