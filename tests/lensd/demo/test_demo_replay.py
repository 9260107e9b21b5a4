"""Where no engine can be had, a recorded real run is shown, judged anew by the rules of today, and called what it is."""

import subprocess
import sys

from lensd.demo.replay import EXIT_STATUS, SAID, parsed, read


def test_the_recorded_run_is_judged_as_it_was_and_called_a_replay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lensd", "demo", "--once"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == EXIT_STATUS == 5, done.stdout + done.stderr
    assert "no engine can be had here: showing a recorded run of vLLM 0.32.0 on the CPU" in done.stdout
    assert "set ENGINE_URL to a running engine" in done.stderr
    for name, label, request_id in read().stops:
        assert f"\n{name}: {label}: " in done.stdout
        assert f"/r/{request_id}\n" in done.stdout
    assert done.stdout.count(f"({SAID})") == len(read().stops) == 9
    assert "[recorded as" not in done.stdout


def test_the_recording_holds_no_prompt_no_key_and_no_path_of_where_it_was_made():
    texts = "\n".join(str(parsed(body)) for body in read().bodies)
    assert "the queue waits for a token" not in texts
    assert "sk-" not in texts
    assert "/root/" not in texts
    assert "/home/" not in texts
