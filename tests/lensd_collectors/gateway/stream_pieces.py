"""A recorded stream of a chat, whole and in pieces, and a whole answer."""

from gateway_stage import CHAT, capture

SSE = capture("http/ok-chat-stream.json")["body"].encode()
WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
REST = SSE[len(HEAD) :]
DONE = b"data: [DONE]\n\n"
STREAMED = {**CHAT, "stream": True}
LIMIT_S = 0.05
