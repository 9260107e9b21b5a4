"""Three cards: an engine whose limit was raised, an engine that says little, and one that fell off the bus; an engine on no card."""

from typing import Any

GIB = 1 << 30
STEP_S = 10.0


def _at(start_s: int) -> str:
    minutes, seconds = divmod(start_s, 60)
    return f"2026-11-30T12:{minutes:02}:{seconds:02}Z"


def _parts(kv_used_gib: int) -> list[dict[str, Any]]:
    sizes = {"weights": 15, "kv_used": kv_used_gib, "kv_free": 50 - kv_used_gib, "runtime": 6}
    return [
        *({"band": band, "bytes": size * GIB, "engine": "e0"} for band, size in sizes.items()),
        {"band": "unexplained", "bytes": 2 * GIB}, {"band": "others", "bytes": GIB},
        {"band": "driver", "bytes": GIB}, {"band": "free", "bytes": 5 * GIB},
    ]  # fmt: skip


SERVING: dict[str, Any] = {
    "host": "gpu-host-1", "gpu": "0", "engines": ["e0"], "assumed": False,
    "points": [
        {
            "seen_at": _at(10 * step), "parts": _parts(10 + step), "used_bytes": 74 * GIB, "total_bytes": 80 * GIB,
            "limit_bytes": (72 if step < 12 else 76) * GIB,
        }
        for step in (*range(6), *range(10, 18))
    ],
}  # fmt: skip
SILENT: dict[str, Any] = {
    "host": "gpu-host-1", "gpu": "1", "engines": ["e1"], "assumed": True,
    "points": [
        {
            "seen_at": _at(10 * step),
            "parts": [
                {"band": "weights", "bytes": None, "engine": "e1"}, {"band": "kv_pool", "bytes": None, "engine": "e1"},
                {"band": "runtime", "bytes": None, "engine": "e1"}, {"band": "not_known", "bytes": 70 * GIB},
                {"band": "others", "bytes": None}, {"band": "driver", "bytes": None}, {"band": "free", "bytes": 10 * GIB},
            ],
            "used_bytes": 70 * GIB, "total_bytes": 80 * GIB,
        }
        for step in range(18)
    ],
}  # fmt: skip
CARDLESS: dict[str, Any] = {
    "host": None, "gpu": None, "engines": ["e2"], "assumed": False,
    "points": [
        {
            "seen_at": _at(10 * step),
            "parts": [
                {"band": "weights", "bytes": GIB, "engine": "e2"}, {"band": "kv_used", "bytes": GIB, "engine": "e2"},
                {"band": "kv_free", "bytes": 3 * GIB, "engine": "e2"}, {"band": "runtime", "bytes": None, "engine": "e2"},
            ],
        }
        for step in range(18)
    ],
}  # fmt: skip
MARKS: list[dict[str, Any]] = [
    {"at": _at(100), "kind": "start", "text": "started, version 0.32.0", "engine": "e0", "host": "gpu-host-1"},
    {"at": _at(119), "kind": "config", "text": "max_model_len 4096 -> 32768", "engine": "e0", "host": "gpu-host-1", "over_budget": True},
]
MEMORY: dict[str, Any] = {"items": [SERVING, SILENT, CARDLESS], "marks": MARKS, "step_s": STEP_S, "next": None}
GPUS: list[dict[str, Any]] = [
    {
        "host": "gpu-host-1", "gpu": "0", "last_sample_at": _at(179), "state": "ok", "used_bytes": 74 * GIB, "util": 0.93,
        "sm_mhz": 1410.0, "throttle": "sw_thermal,sw_power_cap", "temp_c": 84.0, "power_w": 301.4, "ecc": 0,
        "processes": [
            {"pid": 4711, "process": "VLLM::Worker", "engine": "e0", "used_bytes": 73 * GIB},
            {"pid": 99, "process": "python", "used_bytes": None},
        ],
    },
    {"host": "gpu-host-1", "gpu": "1", "last_sample_at": _at(179), "throttle": ""},
    {
        "host": "gpu-host-1", "gpu": "2", "last_sample_at": "2026-11-30T11:02:00Z", "state": "lost",
        "state_reason": "GPU is lost", "state_at": "2026-11-30T11:02:01Z",
    },
]  # fmt: skip
