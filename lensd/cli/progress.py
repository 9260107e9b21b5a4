"""What a command that takes long is doing, on a terminal."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

PATIENCE_S: Final = 2.0  # so long nobody wonders
EVERY_S: Final = 0.5


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """At a terminal, one line that says what is being done once it takes longer than people expect."""
    doing = [""]
    done = threading.Event()

    def show() -> None:
        waited = PATIENCE_S
        while not done.wait(PATIENCE_S if waited == PATIENCE_S else EVERY_S):
            line = "".join(ch if ch.isprintable() else "?" for ch in doing[0])[:90]
            print(f"\rlensd: {line}, {waited:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
            waited += EVERY_S
        if waited > PATIENCE_S:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield lambda what: doing.__setitem__(0, what)
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
