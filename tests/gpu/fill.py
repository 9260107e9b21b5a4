"""Fills a GPU with tensors until there is no room, says how it ended, and stays a while so that its memory can be seen.

usage: fill.py GPU     by a Python that has torch with CUDA; exits 1 after the error, as an engine would
"""

import sys
import time

import torch

STEP_BYTES = 512 * 2**20
PAUSE_S = 0.05
STAY_S = 3.0


def main() -> None:
    device = torch.device("cuda", int(sys.argv[1]))
    kept = []
    try:
        while True:
            kept.append(torch.empty(STEP_BYTES, dtype=torch.uint8, device=device))
            time.sleep(PAUSE_S)
    finally:  # the traceback comes after
        time.sleep(STAY_S)


if __name__ == "__main__":
    main()
