"""Logs in which an engine's first data-parallel rank bears no name of its own beside the others."""

from pathlib import Path

from lensd.diagnosis.folder import read_folder

LINE = (
    "(APIServer pid=1) INFO 11-03 14:00:{at:02d} [loggers.py:127] Engine {rank:03d}: Avg prompt throughput: 500.0 tokens/s, "
    "Avg generation throughput: 300.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: 23.0%, Prefix cache hit rate: 0.0%\n"
)
ARGS = "(APIServer pid=1) INFO 11-03 06:20:12 [utils.py:233] non-default args: {'model': 'm', 'max_num_seqs': 16}\n"


def test_the_first_rank_is_not_taken_for_the_only_named_one(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(ARGS + "".join(LINE.format(at=at, rank=rank, running=5 + rank) for at in (0, 10) for rank in (0, 1)))
    rows = read_folder([tmp_path]).files["vllm.log"].rows
    assert {(row.engine, row.running) for row in rows["engine_samples"]} == {("dp0", 5.0), ("dp1", 6.0)}
    assert {row.subject for row in rows["config_facts"] if row.name == "max_num_seqs"} == {None, "dp0", "dp1"}


def test_an_engine_of_one_rank_keeps_no_name(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(ARGS + "".join(LINE.format(at=at, rank=0, running=5) for at in (0, 10)))
    rows = read_folder([tmp_path]).files["vllm.log"].rows
    assert {row.engine for row in rows["engine_samples"]} == {None}
