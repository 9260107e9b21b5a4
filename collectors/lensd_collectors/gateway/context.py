"""Refuses a prompt that is too long before the engine is bothered with it, and says by how much and whose limit it is.

Only what the engine would certainly refuse too, or what a limit of the gateway's own forbids: in doubt the request goes on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.body import Asked
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.prompt import Need, PromptLimits, Verdict, need

ANSWER_WITHIN_S: Final = 2.0
CANNOT_COUNT_S: Final = 300  # an engine without /tokenize is not asked again for so long
NO_ANSWER_S: Final = 10  # nor one that was too slow or failed
BYTES_PER_TOKEN: Final = 4

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]  # root of the engine's URL, body for its /tokenize -> status, body

log = logging.getLogger("lensd.gateway")


class _Counted(msgspec.Struct):
    count: int
    max_model_len: float | None = None  # SGLang has its tokenizer's there, which may be huge


_read_answer: Final = msgspec.json.Decoder(_Counted).decode


def estimate(data: bytes) -> int:
    """Prompt tokens for rate limits, before anybody has counted: a quarter of the body's bytes, at least 1.

    Usual for English text; an image in the body makes it far too high, token ids a little.
    """
    return max(1, len(data) // BYTES_PER_TOKEN)


class ContextCheck:
    """Remembers which engines cannot count."""

    def __init__(self, ask: Ask, *, clock_ns: Callable[[], int] = time.monotonic_ns, within_s: float = ANSWER_WITHIN_S) -> None:
        self._ask, self._clock_ns, self._within_s = ask, clock_ns, within_s
        self._not_before: dict[tuple[str, str], int] = {}  # engine and model -> when it may be asked again

    async def check(
        self, asked: Asked, data: bytes, route: str, root: str, limits: PromptLimits, *, model: str = "", found: Need | None = None
    ) -> int | None:
        """Prompt tokens, where they had to be counted and were. Raises Refused.

        `root` is the engine's URL without /v1; `found` is what `need` gave for the same arguments, where it was called apart.
        """
        check_max_tokens(asked, limits.context)
        found = found or need(asked, data, route, limits, model=model)
        if found.verdict is Verdict.FITS:
            return None
        tokens, served = found.tokens, 0
        if found.verdict is Verdict.ASK:
            counted = await self._count(root, model or asked.model, found.question)
            if counted is None:
                return None
            tokens, served = counted.count, int(min(counted.max_model_len or 0, 2**62))
        check_prompt(tokens, found, limits, served)
        return None if found.at_least else tokens

    async def _count(self, root: str, model: str, question: bytes) -> _Counted | None:
        """None where the engine does not say."""
        place = root, model
        if self._clock_ns() < self._not_before.get(place, 0):
            return None
        pause_s = 0
        try:
            async with asyncio.timeout(self._within_s):
                status, answer = await self._ask(root, question)
            if status == 200:
                return _read_answer(answer)
            pause_s = CANNOT_COUNT_S if status in (404, 405, 501) else 0  # else it is this one request that it cannot count
        except (msgspec.MsgspecError, UnicodeError):
            pause_s = CANNOT_COUNT_S  # another kind of /tokenize
        except Exception as error:  # whatever it is, the request itself can still succeed
            log.debug("no count of tokens: %s", type(error).__name__)
            pause_s = NO_ANSWER_S
        if pause_s:
            self._not_before[place] = self._clock_ns() + pause_s * 1_000_000_000
        return None


def check_max_tokens(asked: Asked, context: int) -> None:
    """Raises Refused for more than the whole context; what only overshoots the room beside the prompt, newer engines cut back."""
    least, name = asked.max_tokens_least, asked.max_tokens_name
    if context and least is not None and least > context:
        raise Refused(
            Decision.CONTEXT_TOO_LONG,
            f"{name} = {least} is over the whole context, the server's max_model_len of {context}: lower {name} in the client",
            param=name,
        )


def check_prompt(tokens: int, found: Need, limits: PromptLimits, served: int = 0) -> None:
    """Raises Refused for a prompt of so many tokens. `served` is the engine's own word on its max_model_len, in its answer."""
    number = f"{'at least ' if found.at_least else ''}{tokens} tokens"
    counted = None if found.at_least else tokens
    if limits.own and _shortened(tokens, found, limits) > limits.own:
        message = f"the prompt has {number}, {limits.whose} is {limits.own}: shorten the prompt"
        raise Refused(Decision.PROMPT_TOO_LONG, message, param=found.param, prompt_tokens=counted)
    context = max(found.context, served)
    if found.context and tokens >= context + int(found.doubt * context):
        room = "which leaves no room for an answer" if tokens == context else "which is too small for it"
        message = f"the prompt has {number}, the server's max_model_len is {context}, {room}: shorten the prompt"
        raise Refused(Decision.CONTEXT_TOO_LONG, message, param=found.param, prompt_tokens=counted)


def _shortened(tokens: int, found: Need, limits: PromptLimits) -> int:
    """What is left of the prompt after the engine has cut it."""
    if found.shortened_to is None:
        return tokens
    to = found.shortened_to if found.shortened_to >= 0 else limits.context
    return min(tokens, to or tokens)
