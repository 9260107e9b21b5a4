# ruff: noqa: E501  (lines as people write them)
"""Configuration of proxies, of deployments and of callers, in every form it is written → facts of one name and one unit."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.read import Kind, read
from lensd_collectors.read.config_files import CHANGED, read_settings
from lensd_collectors.rows import ConfigFact, Event

NGINX = """location /v1/ {
    proxy_pass http://pool;
    proxy_read_timeout 60s;
    proxy_send_timeout 900s;
}
"""
CASES = {
    "nginx": (NGINX, "gateway", {"proxy_read_timeout_ms": "60000", "proxy_pass": "http://pool", "proxy_buffering": "on"}),
    "nginx, not held back": (NGINX.replace("}", "    proxy_buffering off;\n}"), "gateway", {"proxy_buffering": "off"}),
    "ingress": ('annotations:\n  nginx.ingress.kubernetes.io/proxy-read-timeout: "120"\n', "gateway", {"proxy_read_timeout_ms": "120000"}),
    "HTTPRoute": ("kind: HTTPRoute\nspec:\n  rules:\n    - timeouts:\n        request: 60s\n", "gateway", {"request_timeout_ms": "60000"}),
    "HTTPRoute, flow": ("      timeouts: {request: 1m30s}\n", "gateway", {"request_timeout_ms": "90000"}),
    "VirtualService": (
        "spec:\n  http:\n  - route:\n    - destination: {host: llm}\n    timeout: 15s\n",
        "gateway",
        {"request_timeout_ms": "15000"},
    ),
    "Envoy": ("http_connection_manager:\n  stream_idle_timeout: 300s\n", "gateway", {"stream_idle_timeout_ms": "300000"}),
    "Traefik": (
        "entryPoints:\n  web:\n    transport:\n      respondingTimeouts:\n        writeTimeout: 120s\n",
        "gateway",
        {"write_timeout_ms": "120000"},
    ),
    "HAProxy": ("defaults\n    timeout server 60s\n    timeout client 30s\n", "gateway", {"proxy_read_timeout_ms": "60000"}),
    "ALB": ("ATTRIBUTES\tidle_timeout.timeout_seconds\t300\n", "gateway", {"idle_timeout_ms": "300000"}),
    "LiteLLM": (
        "model_list:\n  - model_name: phi\n    litellm_params:\n      api_key: os.environ/VLLM_KEY\n      rpm: 30\nlitellm_settings:\n  request_timeout: 600\n",
        "gateway",
        {"rpm": "30", "request_timeout_ms": "600000", "engine_key_variable": "VLLM_KEY"},
    ),
    "words": ("router env: no key\n", "gateway", {"has_engine_key": "false"}),
    "probes": (
        "livenessProbe:\n  httpGet: {path: /health}\n  initialDelaySeconds: 60\n  periodSeconds: 10\n  failureThreshold: 3\n",
        "deployment",
        {"liveness_initial_delay_s": "60", "liveness_period_s": "10", "liveness_failures": "3"},
    ),
    "image": ("services:\n  llm:\n    image: vllm/vllm-openai:v0.10.2\n", "deployment", {"version": "v0.10.2"}),
    "caller": (
        'client = OpenAI(base_url="http://llm/v1", timeout=900, max_retries=0)\nproxy_read_timeout 1s;\n',
        "client",
        {"client_read_timeout_ms": "900000", "client_max_retries": "0"},
    ),
    "caller, milliseconds": (
        "new OpenAI({ baseURL, timeout: 600000, maxRetries: 2 })\nproxy_read_timeout 1s;\n",
        "client",
        {"client_read_timeout_ms": "600000", "client_max_retries": "2"},
    ),
    "caller, a pair": (
        "session.post(URL, json=body, timeout=(3.05, 30))\nproxy_read_timeout 1s;\n",
        "client",
        {"client_read_timeout_ms": "30000"},
    ),
}


@pytest.mark.parametrize(("text", "subject", "facts"), CASES.values(), ids=CASES.keys())
def test_every_form(text: str, subject: str, facts: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "some.conf"
    file.write_text(text)
    found = read(file)
    assert found.kind is Kind.FLAGS
    said = {row.name: row.value for row in found.rows["config_facts"] if isinstance(row, ConfigFact) and row.subject == subject}
    assert {name: said.get(name) for name in facts} == facts
    lines = text.split("\n")
    for row in found.rows["config_facts"]:
        assert lines[int((row.src or "").rpartition(":")[2]) - 1].strip()


def test_a_key_in_a_configuration_is_not_kept() -> None:
    rows = read_settings("litellm_params:\n  api_key: sk-planted1234567890\n  rpm: 30\n", name="x").rows
    assert "planted" not in str(rows)


DIFFS = {
    "unified": "--- a/values.yaml\n+++ b/values.yaml\n@@ -1,3 +1,3 @@\n image: x\n-  proxy_read_timeout 300s;\n+  proxy_read_timeout 60s;\n",
    "plain": "5c5\n<   proxy_read_timeout 300s;\n---\n>   proxy_read_timeout 60s;\n",
}


@pytest.mark.parametrize("text", DIFFS.values(), ids=DIFFS.keys())
def test_a_diff_says_what_it_was(text: str) -> None:
    rows = read_settings(text, name="x").rows
    facts = [(row.value, row.was) for row in rows if isinstance(row, ConfigFact) and row.name == "proxy_read_timeout_ms"]
    assert facts == [("60000", "300000")]
    lines = text.split("\n")
    told = [
        lines[int((row.src or "").rpartition(":")[2]) - 1].strip(" <>+-") for row in rows if isinstance(row, Event) and row.name == CHANGED
    ]
    assert sorted(told) == ["proxy_read_timeout 300s;", "proxy_read_timeout 60s;"], "both lines can be cited"


def test_an_argument_of_the_engine_that_was_changed() -> None:
    text = "@@ -1,2 +1,2 @@\n   args:\n-    - --max-num-seqs=256\n+    - --max-num-seqs=1024\n"
    rows = read_settings(text, name="x").rows
    assert [(row.value, row.was) for row in rows if isinstance(row, ConfigFact) and row.name == "max_num_seqs"] == [("1024", "256")]
    assert sorted(row.src or "" for row in rows if isinstance(row, Event)) == ["x:3", "x:4"]


VALUES = """--- a/values.yaml
+++ b/values.yaml
@@ -4,9 +4,9 @@ image:
 extraLlmApiOptions:
-  max_batch_size: 96
+  max_batch_size: 16
   cuda_graph_config:
-    max_batch_size: 64
+    max_batch_size: 32
"""


def test_options_of_an_engine_lie_anywhere_in_a_charts_values_and_those_of_its_graphs_are_others() -> None:
    facts = [row for row in read_settings(VALUES, name="x").rows if isinstance(row, ConfigFact)]
    assert [(row.name, row.value, row.was, row.src) for row in facts] == [("max_num_seqs", "16", "96", "x:6")]


def test_a_changed_key_without_a_space_behind_its_sign_is_read() -> None:
    facts = [
        row
        for row in read_settings("@@ -1 +1 @@\n-max_batch_size: 96\n+max_batch_size: 16\n", name="x").rows
        if isinstance(row, ConfigFact)
    ]
    assert [(row.name, row.value, row.was) for row in facts] == [("max_num_seqs", "16", "96")]


def test_options_in_a_file_are_called_as_on_the_command_line() -> None:
    text = "@@ -1,3 +1,3 @@\n max-model-len: 32768\n-max-num-seqs: 256\n+max-num-seqs: 24\n"
    facts = [row for row in read_settings(text, name="x").rows if isinstance(row, ConfigFact)]
    assert [(row.subject, row.name, row.value, row.was) for row in facts] == [
        (None, "max_model_len", "32768", None),
        (None, "max_num_seqs", "24", "256"),
    ]


HISTORIES = {
    "argocd": ("42  2026-11-25 10:36:12 +0000 UTC  main (e93d510)", "e93d510"),
    "replica sets": ("chat-7c4d44bd9f   2026-11-25T10:36:12Z   2   registry.local/vllm@sha256:77d0", "registry.local/vllm@sha256:77d0"),
}


@pytest.mark.parametrize(("line", "revision"), HISTORIES.values(), ids=HISTORIES.keys())
def test_when_a_revision_came(line: str, revision: str) -> None:
    [row] = [row for row in read_settings(line, name="x").rows if isinstance(row, Event)]
    assert (row.name, row.seen_at) == ("deploy.revision", 1795602972000000)
    assert f'"revision":"{revision}"' in (row.fields or "")


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from([*(text for text, *_ in CASES.values()), *DIFFS.values(), "{", "a: {b: ", "\t- - -"])).map("".join),
    )
)
def test_no_text_makes_it_raise(text: str) -> None:
    read_settings(text, name="x")


def test_a_line_of_flags_below_a_diff_is_what_runs_and_was_not_taken_away() -> None:
    text = "--- a/values.yaml\n+++ b/values.yaml\n-  tag: v1\n+  tag: v2\n--model m --max-num-seqs 64\n"
    facts = {row.name: (row.value, row.was) for row in read_settings(text, name="d.txt").rows if isinstance(row, ConfigFact)}
    assert facts["max_num_seqs"] == ("64", None)
