"""Every expected failure of lensd, each with a code (kebab-case) and the exit status the CLI ends with.

LensdError
├── UsageError              2  wrong flag, value or configuration
│   ├── ConfigError         2  lensd.toml or its environment twin
│   └── RunbookError        2  a runbook that does not load or does not hold its check
├── RequestNotFoundError    4  no request with that id
├── IncidentNotFoundError   4  no incident with that id, or none that is still open
├── EvidenceError           5  nothing to judge from
│   ├── StoreError          5  the store does not do what was asked of it
│   │   ├── NoStoreError    5  no store at that place
│   │   ├── StoreBusyError  5  another process owns the store and does not answer
│   │   ├── StoreVersionError 5  made by a newer lensd
│   │   └── StoreFailedError  5  reading or writing failed: disk full, damaged file
│   ├── UnreadableError     5  input that no reader understands
│   └── IdsNotRecordedError 5  no source records request ids here: whether there was such a request cannot be told
├── ServerError             5  the daemon answered with an error or not at all
│   └── NoAnswerError       5  nobody answers there
├── PartError               5  a part of `lensd up` did not come up or ended by itself; its own status where it is one of these
├── SqlRefusedError         2  SQL that the guard does not let through
├── SqlLimitError           5  SQL over its time or row limit
└── ReceiveError            -  a body the door does not take; carries an HTTP status
    ├── BadBodyError        400
    ├── UnauthorizedError   401; 5 where a command meets it
    ├── BodyTooLargeError   413
    ├── UnsupportedError    415
    ├── FullError           429
    └── JournalError        503 the journal could not be written
"""

from typing import ClassVar


class LensdError(Exception):
    """Expected failure: one line for people, a code for programs, an exit status for shells."""

    code: ClassVar[str] = "error"
    exit_status: int = 1


class UsageError(LensdError):
    code = "usage"
    exit_status = 2


class ConfigError(UsageError):
    code = "config-invalid"


class RunbookError(UsageError):
    code = "runbook-invalid"


class RequestNotFoundError(LensdError):
    code = "request-not-found"
    exit_status = 4


class IncidentNotFoundError(LensdError):
    code = "incident-not-found"
    exit_status = 4


class EvidenceError(LensdError):
    code = "evidence-missing"
    exit_status = 5


class IdsNotRecordedError(EvidenceError):
    code = "ids-not-recorded"


class StoreError(EvidenceError):
    code = "store-error"


class NoStoreError(StoreError):
    code = "store-missing"


class StoreBusyError(StoreError):
    code = "store-busy"


class StoreVersionError(StoreError):
    code = "store-version"


class StoreFailedError(StoreError):
    code = "store-failed"


class UnreadableError(EvidenceError):
    code = "input-unreadable"


class ServerError(LensdError):
    code = "server-unavailable"
    exit_status = 5


class NoAnswerError(ServerError):
    code = "server-silent"


class PartError(LensdError):
    """`status`: what the part itself ended with, None where it still ran."""

    code = "part-ended"
    exit_status = 5

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status in (1, 2, 5):
            self.exit_status = status


class SqlRefusedError(LensdError):
    code = "sql-refused"
    exit_status = 2


class SqlLimitError(LensdError):
    code = "sql-limit"
    exit_status = 5


class ReceiveError(LensdError):
    """A body the OTLP door does not take; `status` is what it answers."""

    code = "receive-refused"
    status: ClassVar[int] = 500


class BadBodyError(ReceiveError):
    code = "bad-body"
    status = 400


class UnauthorizedError(ReceiveError):
    code = "unauthorized"
    exit_status = 5
    status = 401


class BodyTooLargeError(ReceiveError):
    code = "body-too-large"
    status = 413


class UnsupportedError(ReceiveError):
    code = "unsupported-media-type"
    status = 415


class FullError(ReceiveError):
    code = "journal-full"
    status = 429


class JournalError(ReceiveError):
    code = "journal-failed"
    status = 503
