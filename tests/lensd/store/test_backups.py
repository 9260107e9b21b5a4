"""A backup is put back whole; what was there before it becomes a backup; a kill leaves the one or the other."""

import shutil
from pathlib import Path

import pytest
from old_store import all_of, bytes_of, everything, old_store, version_of
from store_rows import NOV_29, span
from test_migrations import Killed, killing

from lensd.errors import NoStoreError, StoreBusyError, StoreFailedError, StoreVersionError
from lensd.store import swap
from lensd.store.arrow import batch_of
from lensd.store.backups import backups, restore
from lensd.store.folder import FolderStore

NOW = 1_796_101_200.0  # 2026-12-01T05:00:00Z
FIRST, SECOND = "backup-v1-20261201T050000Z", "backup-v2-20261201T050100Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that was migrated and has gained a span since."""
    made = old_store(tmp_path / "store")
    store = FolderStore(made, clock=lambda: NOW)
    store.append(batch_of({"spans": [span(77, NOV_29)]}), 12)
    store.close()
    (made / "token").write_text("t")
    return made


def test_a_backup_comes_back_and_the_present_is_kept(folder: Path) -> None:
    old, new = bytes_of(folder / FIRST), everything(folder)
    assert restore(folder, FIRST, lambda: NOW + 60) == SECOND
    assert bytes_of(folder / FIRST) == old, "the backup itself stays"
    assert version_of(folder) == 1
    assert {name: (folder / name).read_bytes() for name in old} == old
    assert everything(folder / SECOND) == new
    assert [(backup.name, backup.schema_version) for backup in backups(folder)] == [(SECOND, 2), (FIRST, 1)]
    assert (folder / "token").read_text() == "t"
    restore(folder, SECOND, lambda: NOW + 120)
    assert everything(folder) == new


def test_a_restored_store_of_version_1_is_migrated_at_its_next_start(folder: Path) -> None:
    old = everything(folder / FIRST)
    restore(folder, FIRST, lambda: NOW + 60)
    store = FolderStore(folder, clock=lambda: NOW + 120)
    assert (all_of(store), store.position()) == (old, 9)
    store.append(batch_of({"spans": [span(78, NOV_29)]}), 13)
    store.close()
    assert everything(folder / FIRST) == old
    assert len(backups(folder)) == 3


def test_what_cannot_be_put_back_is_said(folder: Path) -> None:
    shutil.copytree(folder / FIRST, folder / "backup-v3-20261201T050200Z")
    (folder / "backup-v3-20261201T050200Z" / "store.json").write_text('{"schema_version": 3}')
    (folder / "backup-v1-20261201T050300Z").mkdir()
    before = bytes_of(folder)
    for name, error, says in (
        ("backup-v1-20261201T059999Z", StoreFailedError, "no backup of this name"),
        ("../store", StoreFailedError, "no backup of this name"),
        ("backup-v3-20261201T050200Z", StoreVersionError, "has schema version 3, this lensd knows 2"),
        ("backup-v1-20261201T050300Z", StoreVersionError, "store.json is missing or damaged"),
    ):
        with pytest.raises(error, match=says) as raised:
            restore(folder, name)
        assert "\n" not in str(raised.value)
    with pytest.raises(StoreFailedError, match="this needs"):
        restore(folder, FIRST, free=lambda _: 1000)
    with swap.alone(folder, "test"), pytest.raises(StoreBusyError):
        restore(folder, FIRST)
    assert bytes_of(folder) == before
    with pytest.raises(NoStoreError):
        restore(folder / "nowhere", FIRST)


def test_two_in_one_second_have_names_of_their_own(folder: Path) -> None:
    for expected in ("backup-v2-20261201T050000Z", "backup-v1-20261201T050000Z-2", "backup-v1-20261201T050000Z-3"):
        assert restore(folder, FIRST, lambda: NOW) == expected


@pytest.mark.slow
def test_a_kill_at_any_point_leaves_a_store_that_opens(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, versions, is_done = everything(folder), everything(folder / FIRST), list[int](), False
    while not is_done:
        place = tmp_path / f"killed-{len(versions)}"
        shutil.copytree(folder, place)
        with monkeypatch.context() as patched:
            made = killing(patched, len(versions))
            try:
                restore(place, FIRST, lambda: NOW + 60)
                is_done = True
            except Killed:
                pass
        found = everything(place)
        versions.append(version_of(place))
        assert found == (old if versions[-1] == 1 else new), f"after {made}"
        assert (place / SECOND).exists() == (versions[-1] == 1), f"after {made}"
        assert not (place / "swap").exists(), f"after {made}"
        shutil.rmtree(place)
    assert versions == sorted(versions, reverse=True)
    assert versions[-1] == 1
    assert len(versions) > 8
