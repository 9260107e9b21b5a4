"""The OTLP/gRPC door: the three Export methods, each handing the bytes of its one message to the intake."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from lensd.errors import BadBodyError, BodyTooLargeError, ConfigError, ReceiveError
from lensd.receive import answers
from lensd.receive.intake import Intake
from lensd.receive.unpack import GZIP_MARK
from lensd.store.segments import Signal

SERVICES: Final = {
    "opentelemetry.proto.collector.trace.v1.TraceService": Signal.TRACES,
    "opentelemetry.proto.collector.metrics.v1.MetricsService": Signal.METRICS,
    "opentelemetry.proto.collector.logs.v1.LogsService": Signal.LOGS,
}
_IDENTITY_AND_GZIP: Final = 1 << 0 | 1 << 2
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

Export = Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]


class GrpcDoor:
    """A server in the running loop. Make it, `start` and `stop` it in the same one."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),  # else a second daemon could take half of the first one's connections
                ("grpc.max_receive_message_length", intake.limits.max_body_bytes),
                # gRPC would unpack a message of any size before anybody could look at it, so it comes packed and is unpacked by us.
                ("grpc.per_message_decompression", 0),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
            )
        )
        for service, signal in SERVICES.items():
            # A stream of requests on our side, on the wire the same as one: so the token is looked at before the message is read.
            handler = grpc.stream_unary_rpc_method_handler(self._export(signal))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))

    async def start(self, address: str) -> int:
        """Listen on host:port; the port. Raises ConfigError where that cannot be."""
        try:
            port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            raise ConfigError(f"cannot listen on {address}: set serve.otlp_grpc to a free address, or to nothing") from None
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, and give the bodies at work so long to end."""
        await self._server.stop(grace_s)

    def _export(self, signal: Signal) -> Export:
        async def export(messages: AsyncIterator[bytes], context: Any) -> bytes:
            try:
                with self._intake.place(signal, _authorization(context)):
                    body = await self._only(messages)
                    taken = await self._intake.take(signal, body, coding=b"gzip" if body.startswith(GZIP_MARK) else b"")
            except ReceiveError as error:
                await self._refuse(context, error)
            return bytes(answers.response(signal, taken.left_out, taken.why).SerializeToString())

        return export

    async def _only(self, messages: AsyncIterator[bytes]) -> bytes:
        found: bytes | None = None
        async for message in messages:
            if found is not None:
                raise BadBodyError("a call carries one message, this one more")
            found = message
        if found is None:  # gRPC itself has refused it by now
            raise BodyTooLargeError(f"message is over {self._intake.limits.max_body_bytes} bytes: send smaller batches")
        return found

    async def _refuse(self, context: Any, error: ReceiveError) -> None:
        """Ends the call: gRPC's abort raises."""
        code = _CODES[answers.GRPC_CODES.get(error.status, answers.UNKNOWN)]
        after_s = self._intake.limits.retry_after_s
        told = [("grpc-status-details-bin", answers.status(error, after_s))]
        if answers.is_temporary(error):
            told.append(("google.rpc.retryinfo-bin", answers.retry_info(after_s)))  # where OpenTelemetry's Python SDK looks for it
        await context.abort(code, str(error), tuple(told))


def _authorization(context: Any) -> bytes:
    return next((value.encode() for name, value in context.invocation_metadata() if name == "authorization"), b"")
