"""What people write down of versions they measured and of prompts they compared: a row says one thing, anything else says nothing."""

import json
from pathlib import Path

import pytest
from lensd_collectors.read import read
from lensd_collectors.read.beginnings import Beginnings
from lensd_collectors.read.measured import Measured
from lensd_collectors.rows import Event


def noted(tmp_path: Path, text: str, name: str) -> list[dict[str, object]]:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    rows = [row for rows in read(file).rows.values() for row in rows]
    events = [row for row in rows if isinstance(row, Event) and row.name == name]
    return [{"line": int((row.src or ":0").rpartition(":")[2]), **json.loads(row.fields or "{}")} for row in events]


def test_a_pace_has_its_unit_from_the_line_above(tmp_path: Path) -> None:
    text = "TPOT at one caller, as every Monday\n2026-11-02 v0.10.2 | 18.4\n2026-11-09 v0.11.0 | 26.0 (same host)\n"
    assert noted(tmp_path, text, "bench.result") == [
        {"line": 2, "sign": "noted", "version": "v0.10.2", "tpot_ms": 18.4},
        {"line": 3, "sign": "noted", "version": "v0.11.0", "tpot_ms": 26.0},
    ]


def test_a_pace_has_a_unit_of_its_own(tmp_path: Path) -> None:
    text = (
        "with 0.4.5.post3 it was 61.2 tok/s all week\nsince 0.4.6 (deployed on the 4th): 44 tokens per second\nand 25 ms/token on b8902\n"
    )
    found = [(one["version"], one.get("generation_tps"), one.get("tpot_ms")) for one in noted(tmp_path, text, "bench.result")]
    assert found == [("0.4.5.post3", 61.2, None), ("0.4.6", 44, None), ("b8902", None, 25)]


@pytest.mark.parametrize(
    "line",
    [
        "prompt speed of v0.10.2: 2610 tok/s",  # of prompts
        "v0.10.2 37.1 tok/s, v0.11.0 25.0 tok/s",  # two versions: which is whose is not said row by row
        "v0.10.2 from 30 to 40",  # no unit anywhere
        "10.20.30.40 answered 12 tok/s",  # an address
        "driver 570.133.20, 31 tok/s",  # no version of an engine has such numbers
    ],
)
def test_other_lines_are_no_results(line: str) -> None:
    assert Measured("n", None).read(line, 1) is None


LISTED = """# head of the system prompt of three calls in a row
call 1: You answer for ACME. trace=9f21 lang=de
call 2: You answer for ACME. trace=77b0 lang=de
call 3: You answer for ACME. trace=0c3e lang=de
"""


def test_what_changes_in_the_beginning_of_prompts_has_its_name(tmp_path: Path) -> None:
    assert [(one["line"], one["what"]) for one in noted(tmp_path, LISTED, "prompt.varies")] == [(3, "trace"), (4, "trace")]


def test_beginnings_that_are_all_one_or_each_another_change_nothing(tmp_path: Path) -> None:
    one = LISTED.replace("77b0", "9f21").replace("0c3e", "9f21")
    assert noted(tmp_path, one, "prompt.varies") == []
    others = "first 40 characters of each prompt\nSummarise the contract between\nTranslate this letter into\nWhich river flows through\n"
    assert noted(tmp_path, others, "prompt.varies") == []


HEADS = "".join(
    f'{{"ts": "14:0{n}:07", "prompt_tokens": 139{n}1, "ttft_s": 3.8, "head": "<|system|> Now: 2026-11-26T14:0{n}:07 You answer."}}\n'
    for n in range(3)
)
HASHES = "ts,prompt_tokens,ttft_s,sha_first_1k,sha_rest\n14:00:07,13921,3.8,9af1,c001\n14:00:41,13966,3.9,77b2,c001\n"


def test_records_of_calls_show_how_their_prompts_begin(tmp_path: Path) -> None:
    assert [(one["line"], one["what"]) for one in noted(tmp_path, HEADS, "prompt.varies")] == [(2, "Now"), (3, "Now")]


def test_a_hash_of_the_beginning_changes_and_that_of_the_rest_does_not(tmp_path: Path) -> None:
    assert [(one["line"], one["what"]) for one in noted(tmp_path, HASHES, "prompt.varies")] == [(3, "text")]
    assert noted(tmp_path, HASHES.replace("77b2", "9af1"), "prompt.varies") == []
    assert noted(tmp_path, HASHES.replace("77b2,c001", "77b2,c002"), "prompt.varies") == []


def test_without_a_heading_rows_are_anybodys_lines() -> None:
    reader = Beginnings("n", None)
    assert [reader.read(line, number) for number, line in enumerate(LISTED.split("\n")[1:], 1)] == [None] * 4
