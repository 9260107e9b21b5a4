"""The one formula for limits, as worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.client import Budget, budget


@pytest.mark.parametrize(
    ("max_tokens", "ttft_p95", "tpot_p95", "limits"),
    [
        (512, 1.0, 0.020, (5, 10, 16.36)),
        (512, 0.3, 0.020, (5, 10, 15.66)),
        (100, 8.0, 0.1, (5, 24, 23)),
        (0, 0, 0, (5, 10, 0)),
    ],
)
def test_limits_in_seconds(max_tokens: int, ttft_p95: float, tpot_p95: float, limits: tuple[float, ...]) -> None:
    assert budget(max_tokens, ttft_p95, tpot_p95) == pytest.approx(limits)


@given(st.integers(0, 10**6), st.floats(0, 600), st.floats(0, 10))
def test_a_slower_server_never_gets_less_time(max_tokens: int, ttft: float, tpot: float) -> None:
    given, slower = budget(max_tokens, ttft, tpot), budget(max_tokens, ttft + 1, tpot + 0.1)
    assert isinstance(given, Budget)
    assert all(a <= b for a, b in zip(given, slower, strict=True))
    assert given.read_s >= 10


@pytest.mark.parametrize("bad", [(-1, 1, 1), (1, -0.1, 1), (1, 1, float("nan")), (1, float("inf"), 1)])
def test_what_is_no_measure_is_refused_by_name(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"budget of (max_tokens|ttft_p95|tpot_p95) = "):
        budget(*bad)  # type: ignore[arg-type]
