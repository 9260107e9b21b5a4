"""Host memory, faulty cards, low clocks and offloaded layers: named on what shows them, and with a setting that would do."""

import pytest
from hardware_incidents import HARDWARE, HEALTHY_HARDWARE, NO_MEMORY_KILL
from incident_shape import Incident
from triage_folder import run, write

ADVICE = {
    "a worker that the kernel killed at the pod's limit, in a dmesg without hours": "raise the memory limit from 64 to at least 80 GiB",
    "a pod that was OOMKilled, and a log that simply ends": "raise the memory limit from 64 to at least 80 GiB",
    "events of a node, and a table of a process that grew all morning": "main memory grows by 68.4 GiB an hour",
    "a card off the bus under a running engine": "reboot it",
    "a power limit that somebody set": "from 300 to 700 W (nvidia-smi -pl 700)",
    "a card that grew hot while tokens came slower": "cool the card",
    "a third of a model on the CPU of a llama.cpp server": "4 more layers fit into the 1.7 GiB that are free",
    "an Ollama with more context than the card has room for": "the weights alone need 23.0 GiB and the GPU has 22.0",
    "weights of a vLLM that cross PCIe at each step": "take --cpu-offload-gb away",
}


@pytest.mark.parametrize("incident", [*HARDWARE, *NO_MEMORY_KILL], ids=lambda one: one.name)
def test_the_cause_is_named_on_what_shows_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert (found.verdict.label, found.verdict.stage) == (incident.label, incident.stage), found.verdict.cause
    roots = {finding.label for finding in found.findings if finding.kind == "cause" and finding.explained_by is None}
    assert roots == {incident.label}
    quotes = "\n".join(line.quote or "" for finding in found.findings for line in finding.evidence)
    assert [text for text in incident.says if text not in quotes] == []


@pytest.mark.parametrize("incident", HEALTHY_HARDWARE, ids=lambda one: one.name)
def test_a_look_alike_is_not_named(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert found.verdict.label == (incident.label or "inconclusive"), found.verdict.cause
    assert {finding.label for finding in found.findings if finding.kind == "cause"} <= {incident.label}


@pytest.mark.parametrize("incident", [one for one in HARDWARE if one.name in ADVICE], ids=lambda one: one.name)
def test_what_to_do_is_computed_from_what_was_seen(incident: Incident, tmp_path) -> None:
    assert ADVICE[incident.name] in run(write(tmp_path, incident.files)).verdict.fix


def test_each_advice_belongs_to_an_incident() -> None:
    assert ADVICE.keys() <= {incident.name for incident in HARDWARE}
