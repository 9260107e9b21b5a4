"""What a verdict on files quotes beside its rule's own evidence: bounded, exact, and nothing where nothing bears on it."""

from pathlib import Path

from lensd.diagnosis.beside import MOST_LINES, MOST_OF_A_FILE
from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 768.00 MiB. GPU 1 has a total capacity of 79.19 GiB of which"
    " 412.06 MiB is free."
)
LOG = f"""\
[11/03/2026-12:10:58] [TRT-LLM] [RANK 0] [I] Use 219.94 GB for model weights.
[11/03/2026-12:11:02] [TRT-LLM] [RANK 1] [E] Traceback (most recent call last):
  File "/opt/models/moe.py", line 66, in __init__
    self.experts = create_moe(
  File "/opt/modules/quantization.py", line 455, in create_weights
    weight = nn.Parameter(torch.empty(shape,
{OOM}
"""


def judged(folder: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return triage([folder], load(), {}, Limits())


def test_a_traceback_below_a_framed_first_line_says_where_the_memory_ran_out(tmp_path: Path) -> None:
    found = judged(tmp_path, serve__log=LOG)
    assert found.verdict.label == "oom-model-load"
    assert any(line.source == "serve.log:5" for line in found.findings[0].evidence)


def test_settings_cards_and_notes_are_quoted_beside_it(tmp_path: Path) -> None:
    head = "timestamp, index, name, memory.used [MiB], memory.total [MiB]"
    cards = f"{head}\n2026/11/03 12:10:02.118, 1, NVIDIA H100 80GB HBM3, 4 MiB, 81559 MiB\n"
    found = judged(tmp_path, serve__log=LOG, before__csv=cards, notes__txt="tried again at 12:11:02 with a batch of 4, the same\n")
    quotes = {line.source: line.quote for line in found.findings[0].evidence if line.beside}
    assert quotes["before.csv:2"] == cards.split("\n")[1]
    assert quotes["notes.txt:1"] is not None
    assert quotes["serve.log:1"] is not None


def test_no_file_floods_the_verdict(tmp_path: Path) -> None:
    notes = "\n".join(f"12:11:02 GPU 1 has 79.19 GiB, try {n}" for n in range(80))
    found = judged(tmp_path, serve__log=LOG, **{f"n{n}__txt": notes for n in range(9)})
    own = [line.source or "" for line in found.findings[0].evidence if line.beside]
    assert sum(place.startswith("n1.txt:") for place in own) <= MOST_OF_A_FILE
    assert sum(place.startswith("n") for place in own) <= MOST_LINES


def test_a_verdict_that_nothing_is_wrong_gets_none(tmp_path: Path) -> None:
    samples = "".join(
        f'{{"ts": "2026-11-03T12:{minute}:00Z", "running": 4, "waiting": 0, "kv_usage": 0.2, "preemptions_total": 0,'
        f' "generation_tokens_total": {9000 * minute}, "finished_total": {20 * minute}}}\n'
        for minute in range(10, 30)
    )
    found = judged(tmp_path, samples__jsonl=samples, notes__txt="12:14:00 4 were running, kv_usage 0.2\n")
    assert found.verdict.label == "no-incident"
    assert not any(line.beside for finding in found.findings for line in finding.evidence)


def test_a_key_in_a_note_is_not_quoted(tmp_path: Path) -> None:
    found = judged(tmp_path, serve__log=LOG, notes__txt="12:11:02 GPU 1 of 79.19 GiB, Authorization: Bearer sk-live-7f3a9c1e5b2d4f6a8c0e\n")
    assert not any("7f3a9c1e" in (line.quote or "") for finding in found.findings for line in finding.evidence)
