"""Every expected failure of lensd, each with a code (kebab-case) and the exit status the CLI ends with.

LensdError
├── UsageError              2  wrong flag, value or configuration
│   ├── ConfigError         2  lensd.toml or its environment twin
│   └── RunbookError        2  a runbook that does not load or does not hold its check
├── RequestNotFoundError    4  no request with that id
├── EvidenceError           5  nothing to judge from
│   ├── NoStoreError        5  no store at that place
│   ├── StoreBusyError      5  another process owns the store and does not answer
│   └── UnreadableError     5  input that no reader understands
├── ServerError             5  the daemon answered with an error or not at all
├── SqlRefusedError         2  SQL that the guard does not let through
├── SqlLimitError           5  SQL over its time or row limit
└── ReceiveError            -  a body the door does not take; carries an HTTP status
    ├── BadBodyError        400
    ├── UnauthorizedError   401
    ├── BodyTooLargeError   413
    └── FullError           429
"""

from typing import ClassVar


class LensdError(Exception):
    """Expected failure: one line for people, a code for programs, an exit status for shells."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1


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


class EvidenceError(LensdError):
    code = "evidence-missing"
    exit_status = 5


class NoStoreError(EvidenceError):
    code = "store-missing"


class StoreBusyError(EvidenceError):
    code = "store-busy"


class UnreadableError(EvidenceError):
    code = "input-unreadable"


class ServerError(LensdError):
    code = "server-unavailable"
    exit_status = 5


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
    status = 401


class BodyTooLargeError(ReceiveError):
    code = "body-too-large"
    status = 413


class FullError(ReceiveError):
    code = "journal-full"
    status = 429
