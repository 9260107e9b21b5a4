"""Kills a life of a store inside each of its changes in turn, and counts afterwards what of it is there.

    python torn.py FOLDER LIFE EVERY          with watched.c preloaded and WATCHED set to FOLDER/watched

A line of JSON on stdout for every kill. The process has everything imported and forks for each life and each count; with EVERY above
1 only every so manieth change is tried.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lensd" / "store"), str(HERE)]

from store_rows import DAY_US, NOV_29, span  # noqa: E402
from watched import Change, changes  # noqa: E402

from lensd.store import checkpoints  # noqa: E402
from lensd.store.arrow import batch_of  # noqa: E402
from lensd.store.folder import FolderStore  # noqa: E402
from lensd.store.rollover import roll_over  # noqa: E402

ROWS: Final = 50
LIVES_BEFORE: Final = 4
DAY: Final = NOV_29 // DAY_US
PAGE: Final = 4096


def append(store: FolderStore, place: Path) -> None:
    """The next rows; `place/said` has a file named like their number once they are acknowledged."""
    first = len([*(place / "said").iterdir()]) * ROWS
    store.append(batch_of({"spans": [span(number) for number in range(first, first + ROWS)]}), first + ROWS)
    (place / "said" / str(first + ROWS)).touch()


def closing(store: FolderStore, place: Path) -> None:
    append(store, place)


def asking(store: FolderStore, place: Path) -> None:
    append(store, place)
    store.checkpoint()
    append(store, place)


def committing(store: FolderStore, place: Path) -> None:
    checkpoints.LOG_BYTES = 1000  # type: ignore[misc]
    append(store, place)
    append(store, place)


def rolling_over(store: FolderStore, place: Path) -> None:
    append(store, place)
    roll_over(store, DAY)
    append(store, place)
    store.release()


LIVES: Final[dict[str, Callable[[FolderStore, Path], None]]] = {
    "closing": closing,
    "asking": asking,
    "committing": committing,
    "rolling-over": rolling_over,
    "taking-back": lambda store, place: None,  # on what a kill has left
}


def live(place: Path, life: str) -> None:
    store = FolderStore(place / "store")
    LIVES[life](store, place)
    store.close()


def forked(work: Callable[[], object], **environ: str) -> int:
    """The exit status of a process that does it; as subprocess has it, below 0 for a signal."""
    child = os.fork()
    if child == 0:
        os.environ.update(environ)
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count(place: Path, target: Path) -> None:
    store = FolderStore(place / "store", read_only=True)
    with store.cursor() as cursor:
        [(rows, names)] = cursor.execute("SELECT count(*), count(DISTINCT name) FROM spans").fetchall()
    said = max(map(int, os.listdir(place / "said")))
    target.write_text(json.dumps({"rows": rows, "names": names, "said": said, "left_out": store.left_out}))
    store.close()


def found(place: Path, target: Path) -> dict[str, object] | None:
    """What is there, counted in a process of its own; None where the store does not open."""
    return dict(json.loads(target.read_text())) if forked(lambda: count(place, target)) == 0 else None


def kills(seen: list[Change], every: int) -> Iterator[tuple[int, Change, int]]:
    """Number of a change, the change, and after how many of its bytes to kill."""
    for number, change in enumerate((change for change in seen if change.kind != "s"), 1):
        if number % every == 0:
            size = len(change.data)
            yield from ((number, change, most) for most in sorted({0, min(PAGE, size // 2), size // 2} if change.kind == "w" else {0}))


def main(folder: Path, life: str, every: int) -> None:
    before, place, log = folder / "before", folder / "watched", folder / "log"
    (before / "said").mkdir(parents=True)
    for _ in range(LIVES_BEFORE):
        assert forked(lambda: live(before, "closing")) == 0
    if life == "taking-back":
        cut_short(before, place, log)
    for number, change, most in kills(watched(before, place, log, life), every):
        again(before, place)
        status = forked(lambda: live(place, life), KILLED_AT=str(number), KILLED_BYTES=str(most))
        told = {"path": change.path, "kind": change.kind, "bytes": most, "status": status}
        print(json.dumps(told | {"found": found(place, folder / "found")}), flush=True)


def cut_short(before: Path, place: Path, log: Path) -> None:
    """Make `before` what a kill inside a checkpoint's last write of a block leaves."""
    changed = [change for change in watched(before, place, log, "closing") if change.kind != "s"]
    number = max(place for place, change in enumerate(changed, 1) if change.path.endswith(".duckdb") and len(change.data) > PAGE)
    again(before, place)
    assert forked(lambda: live(place, "closing"), KILLED_AT=str(number), KILLED_BYTES=str(PAGE)) == -9
    again(place, before)
    assert [*before.glob("store/*.undo")]


def watched(before: Path, place: Path, log: Path, life: str) -> list[Change]:
    again(before, place)
    log.unlink(missing_ok=True)
    assert forked(lambda: live(place, life), WATCHED_LOG=str(log)) == 0
    return [*changes(log)]


def again(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(target)
    shutil.copytree(source, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
