"""`/api/v1/plan`: what the store measured, and a plan for a question; the client and the folder's reader say the same."""

import asyncio

import msgspec
import pytest
from lensd_collectors.rows import EngineSample, RequestRow
from seeded import T0, TOKEN, backend, served

from lensd.api.app import build_app
from lensd.api.client import Client
from lensd.api.local import LocalReader
from lensd.api.plan import MOST_BODY_BYTES
from lensd.config import Config
from lensd.memory.lengths import Lengths
from lensd.memory.plan import Plan
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.memory import MemoryStore

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


def row(number, **more):
    plain = {
        "revision": 1, "settled": True, "outcome": "ok", "prompt_tokens": 100 * number, "completion_tokens": 10, "ttft_ms": 10.0 * number,
        "tpot_ms": 20.0,
    }  # fmt: skip
    return RequestRow(request_key=number, request_id=f"r{number}", started_at=T0 + number, engine="e0", model="m", **plain | more)


def fill(store, requests, samples=()):
    store.append(batch_of({"requests": list(requests), "engine_samples": list(samples)}))


HUNDRED = [row(number) for number in range(1, 101)]
NOT_COUNTED = [
    row(201, prompt_tokens=900_000, outcome="failed"),
    row(202, prompt_tokens=900_000, outcome="caller_gone"),
    row(203, prompt_tokens=900_000, settled=False),
    row(204, prompt_tokens=900_000, completion_tokens=None),
    row(205, prompt_tokens=None, completion_tokens=900_000),
]
RUNNING = [EngineSample(seen_at=T0 + n, engine="e0", running=float(n)) for n in range(100)]


@pytest.fixture
def store():
    made = MemoryStore()
    yield made
    made.close()


@pytest.fixture
def client(store):
    fill(store, [*HUNDRED, *NOT_COUNTED], RUNNING)
    with served(store) as url:
        yield Client(url, TOKEN)


def post(store, body):
    sent = []
    parts = [
        {"type": "http.request", "body": body[:1000], "more_body": True},
        {"type": "http.request", "body": body[1000:], "more_body": False},
    ]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/api/v1/plan",
        "raw_path": b"/api/v1/plan", "query_string": b"", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())], "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8600),
    }  # fmt: skip
    asyncio.run(build_app(backend(store))(scope, receive, send))
    return sent[0]["status"], msgspec.json.decode(b"".join(message.get("body", b"") for message in sent[1:]))


def test_what_was_measured(client):
    assert client.lengths() == Lengths(
        requests=100, tokens_p50=5010, tokens_p95=9510, tokens_p99=9910, tokens_max=10_010, answer_p99=10, samples=100, running_p99=98,
        running_max=99, ttft_p95_s=pytest.approx(0.9695), tpot_p95_s=0.02,
    )  # fmt: skip
    assert client.lengths(engine="e0", model="m") == client.lengths()
    assert client.lengths(engine="other") == Lengths()


def test_29_requests_are_not_measured_and_30_are(store):
    fill(store, HUNDRED[:29])
    with served(store) as url:
        assert Client(url, TOKEN).lengths() == Lengths(requests=29)
        fill(store, HUNDRED[29:30])
        assert Client(url, TOKEN).lengths().tokens_p99 == 3010


def test_only_the_last_revision_of_a_request_counts(store):
    fill(store, HUNDRED)
    fill(store, [row(number, revision=2, outcome="failed") for number in range(1, 80)])
    with served(store) as url:
        assert Client(url, TOKEN).lengths() == Lengths(requests=21)


def test_the_folder_says_the_same_as_the_daemon(tmp_path, client):
    kept = FolderStore(tmp_path / "store")
    fill(kept, [*HUNDRED, *NOT_COUNTED], RUNNING)
    kept.close()
    reader = LocalReader.open(tmp_path / "store", Config())
    try:
        assert reader.lengths() == client.lengths()
    finally:
        reader.shut()


def test_a_plan_for_a_question(store):
    fill(store, HUNDRED, RUNNING)
    status, document = post(store, msgspec.json.encode({"config": LLAMA, "gpu": "H100", "context": 8192, "concurrency": 32}))
    assert status == 200
    made = msgspec.convert(document, Plan)
    assert (made.kv_bytes_per_request, made.fits, made.flags["--max-model-len"]) == (1 << 30, True, 8192)
    status, document = post(store, msgspec.json.encode({"config": LLAMA, "gpu": "H100"}))
    assert (status, document["context"], document["concurrency"]) == (200, 9910, 98)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "usage"),
        (b"[]", 400, "usage"),
        (msgspec.json.encode({"gpu": "H100"}), 400, "usage"),
        (msgspec.json.encode({"config": LLAMA, "gpu": "H100", "contxt": 5}), 400, "usage"),
        (msgspec.json.encode({"config": LLAMA, "gpu": "H100"}), 400, "usage"),  # nothing is measured
        (msgspec.json.encode({"config": LLAMA, "gpu": "H100", "context": 0}), 400, "usage"),
        (msgspec.json.encode({"config": LLAMA, "gpu": "H100", "context": "8k"}), 400, "usage"),
        (b" " * (MOST_BODY_BYTES + 1), 400, "usage"),
        (msgspec.json.encode({"config": LLAMA | {"model_type": "new"}, "gpu": "H100", "context": 5}), 404, "evidence-missing"),
    ],
)
def test_what_is_no_question(store, body, status, code):
    answered, document = post(store, body)
    assert (answered, document["error"]["code"]) == (status, code)
    assert "\n" not in document["error"]["message"]
