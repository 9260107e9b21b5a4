"""Where a process's output goes, told from trees like /proc's."""

import os
from pathlib import Path

import pytest
from lensd_collectors.host.place import Place, PlaceKind, place_of
from lensd_collectors.host.sources import log_place

CONTAINER = "0123456789ab" * 5 + "cdef"
UID = "11111111-2222-3333-4444-555555555555"


def proc(folder: Path, target: str, cgroup: str = "0::/\n", error: str = "") -> Path:
    streams = folder / "7" / "fd"
    streams.mkdir(parents=True)
    os.symlink(target, streams / "1")
    os.symlink(error or target, streams / "2")
    (folder / "7" / "cgroup").write_text(cgroup)
    return folder


def test_a_file_is_named(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("x")
    assert place_of(7, proc(tmp_path / "proc", str(log))) == Place(PlaceKind.FILE, str(log))


def test_a_file_of_another_mount_or_one_that_is_gone_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    found = place_of(7, proc(tmp_path / "proc", "/var/log/of-a-container.log"))
    assert (found.kind, found.spec) == (PlaceKind.FILE, "")
    assert "/var/log/of-a-container.log" in found.why


def test_standard_error_counts_where_standard_output_cannot_be_read(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("x")
    assert place_of(7, proc(tmp_path / "proc", "/dev/null", error=str(log))).spec == str(log)


@pytest.mark.parametrize(
    ("target", "cgroup", "kind", "spec"),
    [
        ("socket:[12]", "0::/system.slice/vllm.service\n", PlaceKind.JOURNALD, "journald:vllm.service"),
        ("socket:[12]", "0::/user.slice/user@1000.service/app.slice/vllm.service\n", PlaceKind.JOURNALD, "journald:vllm.service"),
        ("socket:[12]", "0::/user.slice/user-1000.slice/session-3.scope\n", PlaceKind.PIPE, ""),
        ("pipe:[12]", f"0::/system.slice/docker-{CONTAINER}.scope\n", PlaceKind.DOCKER, f"docker:{CONTAINER[:12]}"),
        ("pipe:[12]", f"5:memory:/docker/{CONTAINER}\n0::/docker/{CONTAINER}\n", PlaceKind.DOCKER, f"docker:{CONTAINER[:12]}"),
        ("pipe:[12]", "0::/user.slice/session-3.scope\n", PlaceKind.PIPE, ""),
        ("/dev/pts/3", "0::/\n", PlaceKind.TERMINAL, ""),
        ("/dev/null", "0::/system.slice/vllm.service\n", PlaceKind.NOWHERE, ""),
    ],
)  # fmt: skip
def test_by_stream_and_cgroup(tmp_path: Path, target: str, cgroup: str, kind: PlaceKind, spec: str) -> None:
    found = place_of(7, proc(tmp_path, target, cgroup))
    assert (found.kind, found.spec, bool(found.why)) == (kind, spec, not spec)
    assert not spec or str(log_place(spec, "e0")) == spec  # the agent takes it


@pytest.mark.parametrize("uid", [UID, UID.replace("-", "_")])
def test_a_pod_is_found_by_its_uid_and_its_container_by_the_log_that_names_it(tmp_path: Path, uid: str) -> None:
    group = f"0::/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{CONTAINER}.scope\n"
    pods = tmp_path / "pods"
    for container, of in (("vllm", CONTAINER), ("sidecar", "f" * 64)):
        (pods / f"serving_llm-0_{UID}" / container).mkdir(parents=True)
        os.symlink(f"/var/lib/docker/containers/{of}/{of}-json.log", pods / f"serving_llm-0_{UID}" / container / "0.log")
    assert place_of(7, proc(tmp_path / "proc", "pipe:[1]", group), pods).spec == "pod:serving/llm-0/vllm"


def test_a_pod_whose_container_cannot_be_told_is_not_guessed(tmp_path: Path) -> None:
    group = f"0::/kubepods/pod{UID}/{CONTAINER}\n"
    pods = tmp_path / "pods"
    for container in ("vllm", "sidecar"):
        (pods / f"serving_llm-0_{UID}" / container).mkdir(parents=True)
    found = place_of(7, proc(tmp_path / "proc", "pipe:[1]", group), pods)
    assert (found.kind, found.spec) == (PlaceKind.POD, "")
    assert "serving/llm-0" in found.why
    assert "sidecar, vllm" in found.why
    elsewhere = place_of(7, proc(tmp_path / "proc2", "pipe:[1]", group), tmp_path / "nothing")
    assert (elsewhere.kind, elsewhere.spec) == (PlaceKind.POD, "")


def test_what_may_not_be_read_is_not_known(tmp_path: Path) -> None:
    assert place_of(7, tmp_path).kind is PlaceKind.UNKNOWN
