"""Reads a stream of server-sent events in passing, across any cut of its bytes: counts, its closing event, what it says of itself.

The bytes go to the caller unchanged, whatever is read here. Texts are looked at and not kept; but for an event that is not
whole yet, nothing of the stream is.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from lensd_collectors.gateway.replies import NOT_AN_EVENT, Event, Facts, decode_event, read_reply

__all__ = ["DONE", "MAX_EVENT_BYTES", "Facts", "Half", "Scanner", "data_value", "read_reply"]

MAX_EVENT_BYTES: Final = 1 << 20  # of longer ones it is only known that they came
DONE: Final = b"[DONE]"

_LF, _CR, _BACKSLASH = b"\n\r\\"
_BOM: Final = b"\xef\xbb\xbf"
_PLAIN: Final = bytes(each for each in range(0x20, 0x7F) if each not in b'"\\')
_TEXT: Final = rb"""[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"""  # a surrogate is looked at by itself
_are_texts: Final = re.compile(rb"(?:%b|\n)*+" % _TEXT).fullmatch
_KEPT: Final = 8  # bytes of a line that is too long: enough to tell that it is data


class Half(NamedTuple):
    """What has come of an event that is not whole."""

    data: tuple[bytes, ...]  # values of its data lines
    line: bytes  # a line whose end has not come
    after_cr: bool  # a CR came last: a LF may belong to it
    is_held: bool  # False: too long, and only its beginning is here


class Scanner:
    """`chunks` are data events but [DONE], `content_chunks` those with generated text in them.

    `done_seen`: its closing event has come. `at_boundary`: nothing is half sent, so that a comment or another event can be written.
    `has_ids`: events have ids, and clients keep the last one: to OpenAI's the end of a comment is an event then, with nothing in it.
    """

    __slots__ = (
        "_after_cr", "_carry", "_data", "_head", "_is_finished", "_is_first", "_is_open", "_is_overlong", "_least", "_size", "_start",
        "_tail", "at_boundary", "chunks", "content_chunks", "done_seen", "facts", "has_ids",
    )  # fmt: skip

    def __init__(self) -> None:
        self.facts = Facts()
        self.chunks = self.content_chunks = 0
        self.done_seen = self.has_ids = False
        self.at_boundary = True
        self._head = self._tail = b""  # an event before and after its text: those that follow differ in nothing else
        self._start = self._least = 0  # length of the first, of both
        self._carry = bytearray()  # a line whose end has not come
        self._after_cr = False
        self._is_first = True  # a byte order mark may come
        self._is_open = False  # a line of an event has been read, its closing blank line has not
        self._data: list[bytes] = []  # its data lines
        self._size = 0  # their length; where it is over the limit, they are not kept
        self._is_finished = False
        self._is_overlong = False  # the line that is carried is over the limit, and only its beginning is here

    def feed(self, data: bytes) -> None:
        """Reads on; a read may end anywhere."""
        if not self.at_boundary:
            self._feed_lines(data)
        elif self.is_alike(data):
            start = self._start
            text = data[start : start + len(data) - self._least]
            if not text.translate(None, _PLAIN) or _stand_in_quotes((text,)):
                self.chunks += 1
                if text:
                    self.content_chunks += 1
            else:
                self._feed_events(data)
        else:
            self._feed_events(data)

    def feed_alike(self, reads: Sequence[bytes]) -> Sequence[bytes]:
        """Reads on in one go, where each read is one event like those before: their texts, as written. Else none, and nothing is read."""
        start, end = self._start, self._start - self._least
        if not self.at_boundary or not end:
            return ()
        texts = [read[start:end] for read in reads]
        if b"%b%b%b" % (self._head, (self._tail + self._head).join(texts), self._tail) != b"".join(reads) or not _stand_in_quotes(texts):
            return ()
        self.chunks += len(texts)
        self.content_chunks += len(texts) - texts.count(b"")
        return texts

    def is_alike(self, data: bytes) -> bool:
        """It begins and ends as the events before."""
        return len(data) >= self._least > 0 and data.startswith(self._head) and data.endswith(self._tail)

    def finish(self) -> None:
        """At the end of the bytes: an event without its blank line is read all the same, as many clients do.

        One that broke off counts for nothing; it is still there as `half`.
        """
        if self._is_finished:
            return
        self._is_finished = True
        half = self.half
        value = data_value(half.line)
        data = b"\n".join(half.data if value is None else (*half.data, value))
        if data.startswith(DONE):
            self.done_seen = True
        elif half.is_held and self._read(data) is not None:
            self.chunks += 1

    @property
    def half(self) -> Half:
        is_held = not self._is_overlong and self._size <= MAX_EVENT_BYTES
        return Half(tuple(self._data), bytes(self._carry), self._after_cr, is_held)

    def _feed_events(self, data: bytes) -> None:
        """A read of whole events, each with its data in one line, which is how engines write, goes the short way."""
        end = len(data) - 2
        if data[end:] != b"\n\n" or _CR in data or end > MAX_EVENT_BYTES:
            self._feed_lines(data)
        elif data[:6] == b"data: " and data.find(b"\n") == end:
            self._is_first = False
            if (event := self._event(data[6:end])) is not None:
                self._learn(data, event)
        else:
            values = []
            for block in data[:end].split(b"\n\n"):
                line = block if block[:6] != b"event:" else block[block.find(b"\n") + 1 :]
                if line[:6] != b"data: " or _LF in line:
                    self._feed_lines(data)
                    return
                values.append(line[6:])
            self._is_first = False
            for value in values:
                self._event(value)

    def _learn(self, data: bytes, event: Event) -> None:
        """Keeps an event without its text, where the text is all that it says.

        With no escape in it, and the text's bytes in quotes once only, these are the text: an event that is the same but for
        something else in their place, and no quote or escape there either, says as little.
        """
        text = event.only_text()
        if not text or _BACKSLASH in data:
            return
        quoted = b'"%b"' % text.encode()
        start = data.find(quoted) + 1
        if start and data.find(quoted, start) < 0:
            self._head, self._tail = data[:start], data[start + len(quoted) - 2 :]
            self._start, self._least = start, len(data) - len(quoted) + 2

    def _feed_lines(self, data: bytes) -> None:
        if not data:
            return
        if self._is_first:
            data = self._past_mark(data)
        if self._after_cr:
            data, self._after_cr = data.removeprefix(b"\n"), False
        if _CR in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._carry or len(line) > MAX_EVENT_BYTES:
                self._carry_on(line)
                line = bytes(self._carry)
                self._carry.clear()
            self._line(line)
        if rest:
            self._carry_on(rest)
        self.at_boundary = not (self._carry or self._is_open or self._after_cr)

    def _past_mark(self, data: bytes) -> bytes:
        """What follows a byte order mark at the very beginning; nothing while it may still become one."""
        data = bytes(self._carry) + data
        self._is_first = len(data) < len(_BOM) and _BOM.startswith(data)
        self._carry[:] = data if self._is_first else b""
        return b"" if self._is_first else data.removeprefix(_BOM)

    def _carry_on(self, part: bytes) -> None:
        self._carry += part
        if self._is_overlong or len(self._carry) > MAX_EVENT_BYTES:
            self._is_overlong = True
            del self._carry[_KEPT:]

    def _line(self, line: bytes) -> None:
        is_overlong, self._is_overlong = self._is_overlong, False
        if not line:
            self._dispatch()
        elif not line.startswith(b":"):
            self._is_open = True
            if (value := data_value(line)) is not None:
                self._size += MAX_EVENT_BYTES + 1 if is_overlong else len(value) + 1
                self._data.append(value)
                if self._size > MAX_EVENT_BYTES:
                    self._data = [b""]
            elif line.startswith(b"id:"):
                self.has_ids = True

    def _dispatch(self) -> None:
        lines, size = self._data, self._size
        self._data, self._size, self._is_open = [], 0, False
        if not lines:
            return
        if size > MAX_EVENT_BYTES:
            self.chunks += 1
        else:
            self._event(lines[0] if len(lines) == 1 else b"\n".join(lines))

    def _event(self, data: bytes) -> Event | None:
        if data[:6] == DONE:
            self.done_seen = True
            return None
        self.chunks += 1
        return self._read(data)

    def _read(self, data: bytes) -> Event | None:
        """Takes what an event says; None where it is not one of ours."""
        try:
            event = decode_event(data)
            if self.facts.take(event):
                self.content_chunks += 1
        except NOT_AN_EVENT:
            return None
        if event.type is not None and event.is_last:
            self.done_seen = True
        return event


def data_value(line: bytes) -> bytes | None:
    """Value of a data line; None of any other."""
    if line.startswith(b"data:"):
        return line[6:] if line[5:6] == b" " else line[5:]
    return b"" if line == b"data" else None


def _stand_in_quotes(texts: Sequence[bytes]) -> bool:
    """Each is what a JSON string has between its quotes, whole."""
    whole = b"\n".join(texts)  # which no JSON string has in it
    if not _are_texts(whole) or whole.count(b"\n") >= len(texts):
        return False
    try:
        whole.decode()
    except UnicodeDecodeError:
        return False
    return True
