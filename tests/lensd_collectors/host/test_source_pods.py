"""A container's log on its node: pieces, rotation, restarts, a pod made anew; each line once and the dead instance's last words."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import resolve
from lensd_collectors.host.facts import Facts
from lensd_collectors.host.line import FOLLOWED, State
from lensd_collectors.host.logs import LogFollower
from lensd_collectors.host.pods import Container, PodLog

VLLM = Container("llm", "vllm-0", "vllm")
AT = "2026-11-29T14:43:{second:02d}.5Z stdout F {text}\n"


class Node:
    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 0.0
        self.log: PodLog | None = None

    def folder(self, uid: str = "uid-1", pod: str = "vllm-0") -> Path:
        made = self.root / f"llm_{pod}_{uid}" / "vllm"
        made.mkdir(parents=True, exist_ok=True)
        return made

    def write(self, number: int, *texts: str, uid: str = "uid-1") -> Path:
        path = self.folder(uid) / f"{number}.log"
        with path.open("a") as file:
            file.write("".join(AT.format(second=at % 60, text=text) for at, text in enumerate(texts)))
        return path

    def follow(self) -> PodLog:
        self.log = PodLog(VLLM, 1000, lambda: self.now, root=self.root)
        return self.log

    def lines(self) -> list[tuple[str, str, int]]:
        assert self.log is not None
        found = []
        for _ in range(4):
            self.now += 1.5
            found += [(Path(line.file).name, line.text.split(" F ")[-1], line.number) for line in self.log.poll()]
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.log is not None:
        made.log.close()


def test_new_lines_then_the_next_instance_from_its_beginning(node: Node) -> None:
    node.write(0, "before us")
    node.follow()
    assert node.lines() == []
    node.write(0, "a", "dying")
    node.write(1, "b")
    node.write(2, "c")
    assert node.lines() == [("0.log", "a", 2), ("0.log", "dying", 3), ("1.log", "b", 1), ("2.log", "c", 1)]
    node.write(2, "d")
    assert node.lines() == [("2.log", "d", 2)]


def test_the_last_words_of_an_instance_that_died_before_we_came(node: Node) -> None:
    node.write(0, "long ago")
    node.write(3, *[f"line {number}" for number in range(20_000)], "died of this")
    node.write(4, "started again")
    node.follow()
    told = node.lines()
    for _ in range(20):
        told += node.lines()
    assert told[-1] == ("3.log", "died of this", 20_001)
    assert 1000 < len(told) < 10_000, "its end, not all of it"
    node.write(4, "new")
    assert node.lines() == [("4.log", "new", 2)]


def test_the_kubelets_rotation_loses_and_doubles_nothing(node: Node) -> None:
    path = node.write(0, "a")
    node.follow()
    node.write(0, "b")
    path.rename(path.with_name("0.log.20261129-144300"))
    (path.with_name("0.log.20261129-140000.gz")).write_bytes(b"\x1f\x8b")
    node.write(0, "c")
    assert [text for _, text, _ in node.lines()] == ["b", "c"]


def test_a_pod_made_anew_under_its_name(node: Node) -> None:
    node.write(0, "a", uid="uid-1")
    node.follow()
    node.write(0, "b", uid="uid-1")
    path = node.write(0, "c", uid="uid-2")
    os.utime(path, ns=(2**62, 2**62))
    assert [text for _, text, _ in node.lines()] == ["b", "c"]


def test_a_pod_that_is_not_there_yet_and_others_of_like_names(node: Node) -> None:
    (node.folder(pod="vllm-01") / "0.log").write_text(AT.format(second=0, text="of another"))
    log = node.follow()
    assert node.lines() == []
    assert log.standing == (State.MISSING, f"no log of pod:llm/vllm-0/vllm below {node.root}")
    node.write(0, "a")
    assert node.lines() == [("0.log", "a", 1)]
    assert log.standing == FOLLOWED


def test_a_folder_that_may_not_be_read_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("lensd_collectors.host.pods.os.scandir", denied)
    log = node.follow()
    assert log.standing == (State.DENIED, f"{node.root}: permission denied")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["write", "poll", "restart", "rotate"]), max_size=25))
def test_any_order_of_writes_and_restarts_gives_each_line_once(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    node = Node(tmp_path_factory.mktemp("pods"))
    number, written, got = 0, 0, []
    node.write(0)
    log = node.follow()
    got += node.lines()
    for index, step in enumerate(steps):
        if step == "write":
            written += 1
            node.write(number, str(written))
        elif step == "restart":
            number += 1
            node.write(number)
        elif step == "rotate":
            got += node.lines()
            path = node.folder() / f"{number}.log"
            path.rename(path.with_name(f"{number}.log.2026{index}"))
            node.write(number)
        else:
            got += node.lines()
    for _ in range(len(steps) + 1):
        got += node.lines()
    log.close()
    assert [text for _, text, _ in got] == [str(each) for each in range(1, written + 1)]


def test_pieces_come_out_whole_with_their_own_instant(recorder: Any, node: Node) -> None:
    node.write(0)
    engine = resolve(WatchedEngine(url="http://h:1", name="e0", log="pod:llm/vllm-0/vllm"))
    facts = Facts(engine, recorder, lambda engine, path: b"", lambda: 5)
    follower = LogFollower(engine, recorder, facts, node.follow(), lambda: 5)
    with (node.folder() / "0.log").open("a") as file:
        file.write("2026-11-29T14:43:00.1Z stdout P (APIServer pid=1) INFO\n2026-11-29T14:43:00.2Z stderr F other\n")
        follower.follow()
        file.write("2026-11-29T14:43:00.3Z stdout F  11-29 14:43:00 [x.py:1] done\n")
    follower.follow()
    follower.follow()
    told = [(each.body.string_value, each.time_unix_nano, recorder.attributes(each)["lensd.log.line"]) for each in recorder.events]
    assert told == [
        ("other", "1795963380200000000", "2"),
        ("(APIServer pid=1) INFO 11-29 14:43:00 [x.py:1] done", "1795963380100000000", "1"),
    ]
    assert recorder.attributes(recorder.events[0])["log.file.path"] == str(node.folder() / "0.log")
