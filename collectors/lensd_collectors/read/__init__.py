"""What people have (engine logs, scrapes, HTTP exchanges, span dumps, flags) → rows of the public tables, and back to the quoted text."""

from lensd_collectors.read.cite import CiteError, quote
from lensd_collectors.read.recognise import FileRows, Kind, read, recognise

__all__ = ["CiteError", "FileRows", "Kind", "quote", "read", "recognise"]
