"""The containers fit together: what the compose file starts, publishes, mounts and names exists and is what lensd reads."""

import re
import tomllib
from typing import Any

import pytest
import yaml
from checkout import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS = tomllib.loads((ROOT / "deploy/lensd.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OURS = ["lensd", "gateway", "agent", "dashboard"]


def test_it_starts_the_engine_and_every_part() -> None:
    assert sorted(SERVICES) == sorted(["engine", *OURS])


@pytest.mark.parametrize(("service", "verb"), [("lensd", "serve"), ("gateway", "gateway"), ("agent", "agent"), ("dashboard", "dashboard")])
def test_each_part_runs_its_verb_with_the_shared_configuration(service: str, verb: str) -> None:
    from lensd.cli.main import COMMANDS

    assert verb in COMMANDS
    assert SERVICES[service]["command"].startswith(f"lensd {verb} --config /etc/lensd/lensd.toml")
    assert "./deploy/lensd.toml:/etc/lensd/lensd.toml:ro" in SERVICES[service]["volumes"]


def test_the_shared_configuration_is_one_that_lensd_takes() -> None:
    from lensd.config import load

    config = load(str(ROOT / "deploy/lensd.toml"), environ={})
    (upstream,), (watched,) = config.gateway.upstreams, config.agent.engines
    assert (upstream.name, upstream.url) == (watched.name, watched.url) == ("engine", "http://engine:8000")


def test_ports_are_published_on_this_machine_only_and_where_the_parts_listen() -> None:
    published = {service: sorted(parts["ports"]) for service, parts in SERVICES.items() if "ports" in parts}
    assert published == {
        "lensd": ["127.0.0.1:4317:4317", "127.0.0.1:4318:4318", "127.0.0.1:8600:8600"],
        "gateway": ["127.0.0.1:8080:8080"],
        "dashboard": ["127.0.0.1:8501:8501"],
    }
    listening = [
        *(SETTINGS["serve"][door] for door in ("otlp_grpc", "otlp", "api")),
        *(SETTINGS[part]["listen"] for part in ("gateway", "dashboard")),
    ]
    assert listening == [f"0.0.0.0:{port}" for port in (4317, 4318, 8600, 8080, 8501)]


def test_what_listens_has_a_health_check_on_its_own_port() -> None:
    for service in ("engine", "lensd", "gateway", "dashboard"):
        check = " ".join(SERVICES[service]["healthcheck"]["test"])
        port = re.search(r"http://127\.0\.0\.1:(\d+)/", check)
        assert port is not None, service
        expected = "8000" if service == "engine" else SERVICES[service]["ports"][-1].rsplit(":", 1)[1]
        assert port[1] == expected


def test_the_token_is_a_secret_and_stands_nowhere_else() -> None:
    assert COMPOSE["secrets"] == {"lensd_token": {"file": "./secrets/token"}}
    assert SETTINGS["serve"]["token_file"] == "/run/secrets/lensd_token"
    for service in SERVICES.values():
        assert service["secrets"] == ["lensd_token"]
        assert not [name for name in service.get("environment", {}) if "TOKEN" in name or "HEADERS" in name]
    assert "secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_volumes_and_settings_name_the_same_places() -> None:
    mounted = {service: [volume.split(":")[1] for volume in parts["volumes"]] for service, parts in SERVICES.items()}
    assert SETTINGS["serve"]["store"] in mounted["lensd"]
    assert SETTINGS["gateway"]["keys_file"].rpartition("/")[0] in mounted["gateway"]
    log = SETTINGS["agent"]["engines"][0]["log"]
    assert log.rpartition("/")[0] in mounted["agent"]
    assert f"tee {log}" in SERVICES["engine"]["command"][0]
    named = {volume.split(":")[0] for parts in SERVICES.values() for volume in parts["volumes"] if not volume.startswith(".")}
    assert named == set(COMPOSE["volumes"])


def test_our_parts_run_without_root_on_a_file_system_they_cannot_change() -> None:
    assert re.search(r"^USER lensd$", DOCKERFILE.rpartition("AS lensd")[2], re.M)
    for service in OURS:
        parts = SERVICES[service]
        assert (parts["read_only"], parts["cap_drop"]) == (True, ["ALL"])
    # a folder that a named volume is laid over must belong to that user in the image
    assert "install -d -o lensd -g lensd /var/lib/lensd /var/lib/lensd-keys" in DOCKERFILE


def test_the_dockerfile_builds_from_this_checkout_with_hashes() -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.M)
    assert targets == ["wheel", "engine", "lensd"]
    assert {parts["build"]["target"] for parts in SERVICES.values()} == {"engine", "lensd"}
    installs = re.findall(r"pip install (.*?)(?: \\|$)", DOCKERFILE, re.M)
    assert len(installs) == 4
    assert all("--require-hashes" in install or ("--no-deps" in install and "/wheel/" in install) for install in installs)
    copied = [name for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.M) for name in line.split()[:-1]]
    let_through = (ROOT / ".dockerignore").read_text().split()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name.split('/')[0]}" in let_through


def test_the_engine_is_of_the_version_that_the_tests_run_against() -> None:
    tag = re.search(r"^ARG ENGINE_IMAGE=vllm/vllm-openai:v(\S+)$", DOCKERFILE, re.M)
    built = re.search(r'^VLLM = "(\S+)"$', (ROOT / "tools/engine/build.py").read_text(), re.M)
    assert tag is not None
    assert built is not None
    assert tag[1] == built[1]
