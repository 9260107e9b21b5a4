"""A sender of spans as a process of its own, until its standard input closes.

usage: python -m query.load URL TOKEN SPANS_A_SECOND     says one line of JSON at its end: {"sent", "refused", "seconds"}
"""

import http.client
import json
import select
import sys
import time
from typing import Final
from urllib.parse import urlsplit

from ingest.spans import LASTS_US, bodies

A_BODY: Final = 350
STEPS_A_SECOND: Final = 4
CONNECTIONS: Final = 6


def main(argv: list[str]) -> int:
    url, token, rate = argv[1], argv[2], int(argv[3])
    doors = [http.client.HTTPConnection(urlsplit(url).netloc, timeout=60) for _ in range(CONNECTIONS)]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
    sent = refused = step = 0
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, began + step / STEPS_A_SECOND - time.monotonic()))[0]:
        some = rate // STEPS_A_SECOND
        made = bodies(some, A_BODY, time.time_ns() // 1000 - LASTS_US, step)
        while sending := list(zip(doors, made, strict=False)):
            for door, body in sending:
                door.request("POST", "/v1/traces", body, headers)
            for door, _ in sending:
                answer = door.getresponse()
                answer.read()
                refused += answer.status != 200
        sent += some
        step += 1
    print(json.dumps({"sent": sent, "refused": refused, "seconds": time.monotonic() - began}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
