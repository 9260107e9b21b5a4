"""A body as it was before it was packed for the wire, in bounded memory."""

import zlib
from typing import Final

from lensd.errors import BadBodyError, BodyTooLargeError, UnsupportedError

_PIECE: Final = 4 << 20
GZIP_MARK: Final = b"\x1f\x8b"  # no OTLP message begins so: no protobuf field has the wire type 7


def unpacked(coding: bytes, body: bytes, limit: int) -> bytes:
    """The body without its content coding (none, identity or gzip), at most `limit` bytes of it.

    Raises UnsupportedError for another coding, BadBodyError for what is no gzip, BodyTooLargeError over the limit; of a gzip bomb
    no more than the limit is ever unpacked.
    """
    if coding in (b"", b"identity"):
        if len(body) > limit:
            raise BodyTooLargeError(f"body of {len(body)} bytes is over {limit}: send smaller batches")
        return body
    if coding != b"gzip":
        raise UnsupportedError(f"content-encoding {coding.decode('latin-1')[:40]!r}: send gzip or none")
    try:
        return _gunzipped(body, limit)
    except zlib.error:
        raise BadBodyError("body is not gzip, though it says so") from None


def _gunzipped(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    parts, size, left = list[bytes](), 0, body
    while not unpacker.eof:
        part = unpacker.decompress(left, _PIECE)
        parts.append(part)
        size, left = size + len(part), unpacker.unconsumed_tail
        if size > limit:
            parts.clear()  # an error keeps what its function held
            raise BodyTooLargeError(f"body is over {limit} bytes once unpacked: send smaller batches")
        if not left and len(part) < _PIECE:
            break
    if not unpacker.eof or unpacker.unused_data:
        raise BadBodyError("gzip body is cut short or has something after its end")
    return b"".join(parts)
