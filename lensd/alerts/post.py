"""Sends one alert over HTTP with the standard library; redirects are answers, not followed."""

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from typing import IO, Any

from lensd.alerts.delivery import Failure, HttpAnswer, HttpRequest, SendError

READ_LIMIT = 64 * 1024  # of an answer's body, which is read only so that the connection ends well


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def post(request: HttpRequest) -> HttpAnswer:
    """The answer to a POST, whatever its status.

    Raises SendError where none came. Its text is made here, from the kind of error alone: what the library says of an
    error may quote the URL.
    """
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        wire = urllib.request.Request(request.url, data=request.body, headers=dict(request.headers), method="POST")
        with opener.open(wire, timeout=request.timeout_s) as answer:
            answer.read(READ_LIMIT)
            return HttpAnswer(status=answer.status, retry_after=answer.headers.get("Retry-After"))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(status=error.code, retry_after=error.headers.get("Retry-After"))
    except urllib.error.URLError as error:
        raise _told(error.reason, request.timeout_s) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _told(error, request.timeout_s) from None


def _told(error: object, timeout_s: float) -> SendError:
    if isinstance(error, TimeoutError):
        return SendError(Failure.TIMEOUT, f"did not answer within {timeout_s:g} s")
    if isinstance(error, ssl.SSLCertVerificationError):
        return SendError(Failure.UNREACHABLE, "has a certificate that does not verify")
    if isinstance(error, ssl.SSLError):
        return SendError(Failure.UNREACHABLE, "does not speak TLS as expected")
    if isinstance(error, socket.gaierror):
        return SendError(Failure.UNREACHABLE, "has a host name that does not resolve")
    if isinstance(error, ConnectionRefusedError):
        return SendError(Failure.UNREACHABLE, "refused the connection")
    if isinstance(error, http.client.InvalidURL | ValueError):
        return SendError(Failure.CLIENT_ERROR, "cannot be asked: the url holds characters that must be escaped")
    return SendError(Failure.UNREACHABLE, "broke off the connection")
