"""What a packed body unpacks to, at the edges of the pieces it is unpacked in and of the limit."""

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lensd.errors import BadBodyError, BodyTooLargeError, UnsupportedError
from lensd.receive import unpack
from lensd.receive.unpack import unpacked

PIECE = 1000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "_PIECE", PIECE)


def noise(size: int) -> bytes:
    """Zeros and what cannot be packed in turns, so that a piece ends in each."""
    chance = random.Random(size)
    made = b"".join(chance.choice((bytes(150), chance.randbytes(150))) for _ in range(size // 150 + 1))
    return made[:size]


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 7 * PIECE + 1])
def test_a_body_comes_back_whole_up_to_the_limit(size: int) -> None:
    body = noise(size)
    packed = gzip.compress(body)
    assert unpacked(b"gzip", packed, size) == body
    assert unpacked(b"", body, size) == body
    if size:
        for coding, sent in ((b"gzip", packed), (b"", body), (b"identity", body)):
            with pytest.raises(BodyTooLargeError, match=f"over {size - 1}"):
                unpacked(coding, sent, size - 1)


@given(st.binary(max_size=200), st.data())
def test_a_body_cut_anywhere_is_not_taken_for_a_whole_one(body: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(body)
    with pytest.raises(BadBodyError):
        unpacked(b"gzip", packed[: data.draw(st.integers(0, len(packed) - 1))], 1000)
    with pytest.raises(BadBodyError):
        unpacked(b"gzip", packed + data.draw(st.binary(min_size=1, max_size=5)), 1000)


def test_another_coding_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'br'"):
        unpacked(b"br", b"", 1000)
