"""Equal work: a fixed number of requests by callers that each send the next one as they have the reply to the last."""

import asyncio
import time
from collections.abc import Callable, Sequence

from gateway.load import Caller
from gateway.process import BenchError


async def served(made: Sequence[Caller], request: bytes, number: int) -> tuple[float, int]:
    """Seconds until the last reply is whole, and events that all had. Raises BenchError where one is not whole.

    `number` is at least that of the callers.
    """
    done = asyncio.get_running_loop().create_future()
    unsent, awaited, events = number - len(made), number, 0

    def on_end(caller: Caller) -> Callable[[], None]:
        def ended() -> None:
            nonlocal unsent, awaited, events
            awaited -= 1
            events += caller.frames
            if done.done():
                return
            if not caller.is_whole:
                done.set_exception(BenchError(f"a reply was not whole: status {caller.status}"))
            elif unsent:
                unsent -= 1
                caller.send(request)
            elif not awaited:
                done.set_result(None)

        return ended

    began = time.perf_counter()
    for caller in made:
        caller.ended = on_end(caller)
        caller.send(request)
    await done
    return time.perf_counter() - began, events
