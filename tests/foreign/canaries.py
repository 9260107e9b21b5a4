"""Marks that are planted in what a sender says and must be nowhere afterwards, and the search for them.

A mark is one of two stems and four letters. Content is written the way people write; a key has the form of its maker and its mark
twice, so that a key of which a half is left is still found.
"""

import base64
import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

CONTENT: Final = "quokkazinnia"
KEY: Final = "Zq7WxK3vB"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_MARK: Final = re.compile(rf"(?:{CONTENT}|{KEY})([a-z]{{4}})", re.IGNORECASE)
_DEPTH: Final = 3  # containers inside containers


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _jwt(body: str) -> str:
    head, claims = _b64(b'{"alg":"HS256","typ":"JWT"}'), _b64(json.dumps({"sub": body, "scope": "llm"}).encode())
    return f"{head}.{claims}.{body}"


def _long(body: str, size: int) -> str:
    """A key as long as its maker makes them."""
    return (body + "Ab3dE5gH7jK9" * 10)[:size]


KEYS: Final[dict[str, Callable[[str], str]]] = {
    "openai": lambda body: f"sk-{_long(body, 48)}",
    "openai_project": lambda body: f"sk-proj-{_long(body, 120)}",
    "anthropic": lambda body: f"sk-ant-api03-{_long(body, 93)}",
    "helicone": lambda body: f"sk-helicone-{body}",
    "langfuse": lambda body: f"sk-lf-{body}",
    "langsmith": lambda body: f"lsv2_pt_{body}",
    "huggingface": lambda body: f"hf_{_long(body, 34)}",
    "google": lambda body: f"AIza{_long(body, 35)}",
    "github": lambda body: f"ghp_{_long(body, 36)}",
    "slack": lambda body: f"xoxb-1234567890-{body}",
    "groq": lambda body: f"gsk_{_long(body, 52)}",
    "nvidia": lambda body: f"nvapi-{_long(body, 64)}",
    "aws": lambda body: f"AKIA{body[:16].upper()}",
    "aws_secret": lambda body: f"aws_secret_access_key={_long(body, 40)}",
    "jwt": _jwt,
    "bearer": lambda body: f"Bearer {body}",
    "basic": lambda body: f"Basic {base64.b64encode(f'user:{body}'.encode()).decode()}",
    "azure_header": lambda body: f"api-key: {body}",
    "x_api_key": lambda body: f"x-api-key: {body}",
    "url_key": lambda body: f"https://llm.example/v1/chat/completions?api_key={body}&n=1",
    "url_google": lambda body: f"https://generativelanguage.example/v1beta/models/g:generateContent?key={body}",
    "url_signature": lambda body: f"https://blob.example/c/f.png?sv=2024-01-01&sig={body}&se=2026-12-01",
    "url_user": lambda body: f"https://user:{body}@llm.example/v1",
    "opaque": lambda body: body,
}
"""A key as its maker writes it, or as it stands in a header or an address; `opaque` has no form of its own."""


class Planted:
    """Makes the marks of one sender, each for one place; `taken` is shared by all senders: mark -> what a failing test says."""

    def __init__(self, sender: str, taken: dict[str, str]) -> None:
        self.sender, self._taken = sender, taken

    def _mark(self, place: str) -> str:
        number = zlib.crc32(f"{self.sender}/{place}".encode()) % 26**4
        while (mark := _letters(number)) in self._taken:
            number = (number + 1) % 26**4
        self._taken[mark] = f"{self.sender}: {place}"
        return mark

    def said(self, place: str) -> str:
        """Words of a prompt, an answer, a tool's argument: nothing about them looks like a key."""
        mark = CONTENT + self._mark(place)
        return f"{mark} tell me how the merger with our neighbours went, dear {mark}"

    def key(self, kind: str, place: str) -> str:
        mark = self._mark(f"{place} ({kind})")
        return KEYS[kind](f"{KEY}{mark}{KEY}{mark}9fQ2")

    def image(self, place: str) -> str:
        """A data URL whose bytes hold a mark."""
        return f"data:image/png;base64,{base64.b64encode(b'PNG0' + self.said(place).encode()).decode()}"


def _letters(number: int) -> str:
    made = ""
    for _ in range(4):
        number, rest = divmod(number, 26)
        made += _LETTERS[rest]
    return made


def _in_base64(stem: bytes) -> Iterator[bytes]:
    """What stays the same of a stem inside base64, for each of the three ways it can lie there."""
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + stem + b"\0" * (-(before + len(stem)) % 3))
        start, end = (before * 8 + 5) // 6, (before + len(stem)) * 8 // 6
        yield whole[start:end]


_AS_BYTES: Final = [
    form
    for stem in (CONTENT.encode(), KEY.encode(), KEY.upper().encode())
    for form in (stem.hex().encode(), stem.hex().upper().encode(), stem.decode().encode("utf-16-le"), *_in_base64(stem))
]
_PLAIN: Final = (CONTENT.encode(), KEY.lower().encode())


def found_in(blob: bytes, depth: int = _DEPTH) -> Counter[str]:
    """How often each mark stands in `blob`: as it is, in base64, hexadecimal or UTF-16 (as `?form`), or inside zlib, gzip and zip."""
    found: Counter[str] = Counter()
    lower = blob.lower()
    if any(stem in lower for stem in _PLAIN):
        found.update(mark.lower() for mark in _MARK.findall(blob.decode("latin-1")))
        if not found:
            found["?cut"] += 1
    for form in _AS_BYTES:
        if form in blob:
            found.update(_decoded(blob, form))
    for inner in _unpacked(blob) if depth else ():
        found += found_in(inner, depth - 1)
    return found


def _decoded(blob: bytes, form: bytes) -> list[str]:
    """The marks around an encoded stem, `?form` where the surrounding does not decode."""
    found: list[str] = []
    for match in re.finditer(re.escape(form), blob):
        around = re.search(rb"[A-Za-z0-9+/_-]*$", blob[max(0, match.start() - 4000) : match.start()])
        start = match.start() - len(around[0] if around else b"")
        text = re.match(rb"[A-Za-z0-9+/_-]*", blob[start : start + 8000])
        raw = (text[0] if text else b"").replace(b"-", b"+").replace(b"_", b"/")
        for shift in range(4):
            piece = raw[shift : shift + (len(raw) - shift) // 4 * 4]
            found += [mark.lower() for mark in _MARK.findall(base64.b64decode(piece).decode("latin-1"))]
    return found or [f"?{form[:12].decode('latin-1')}"]


def _unpacked(blob: bytes) -> Iterator[bytes]:
    view = memoryview(blob)
    if blob[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(blob)) as pack:
            for name in pack.namelist():
                yield name.encode() + b"\n" + pack.read(name)
    for magic, unpack in ((b"\x1f\x8b\x08", _gunzip), (b"\x78\x9c", _inflate), (b"\x78\x01", _inflate), (b"\x78\xda", _inflate)):
        at = blob.find(magic)
        while at >= 0:
            if inner := unpack(view[at:]):
                yield inner
            at = blob.find(magic, at + 1)


def _inflate(part: memoryview, form: int = zlib.MAX_WBITS) -> bytes:
    try:
        return zlib.decompressobj(form).decompress(part, 1 << 24)
    except zlib.error:
        return b""


def _gunzip(part: memoryview) -> bytes:
    return _inflate(part, 31)
