"""Takes a picture of a page as a person would see it, once its text is there and it has stopped changing.

    tools/screenshot.py URL OUT.png [--width 1400] [--height 1800] [--wait-for TEXT] [--dark] [--timeout 40]

Needs selenium, chromium and its driver (Debian: chromium, chromium-driver). Exits 5 in one line where they are missing or the text
never comes.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--hide-scrollbars",
)  # fmt: skip
_CAPTURE = "return document.body ? document.body.innerText : ''"
_BUSY = 'return document.querySelectorAll(\'[data-testid="stStatusWidget"], [data-stale="true"], [data-testid="stSkeleton"]\').length'


class PictureError(Exception):
    """No picture could be taken; one line says why."""


def find(*names: str) -> str:
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise PictureError(f"none of {', '.join(names)} is installed: on Debian, apt-get install chromium chromium-driver")
    return found


def browser(width: int, height: int, profile: str, dark: bool) -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = find("chromium", "chromium-browser", "google-chrome")
    for flag in (*QUIET, f"--window-size={width},{height}", f"--user-data-dir={profile}", "--force-device-scale-factor=1"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(find("chromedriver")))
    scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    )
    return driver


def settle(driver: Any, text: str, timeout_s: float) -> None:
    """Waits until the text is on the page and the page has looked the same for a second and a half."""
    until, last, since = time.monotonic() + timeout_s, "", time.monotonic()
    while time.monotonic() < until:
        now = driver.execute_script(_CAPTURE)
        if now != last or driver.execute_script(_BUSY):
            last, since = now, time.monotonic()
        elif text in now and now and time.monotonic() - since > 1.5:
            return
        time.sleep(0.2)
    if text and text not in last:
        raise PictureError(f"{text!r} did not come within {timeout_s:g} s; the page says: {' '.join(last.split())[:300] or 'nothing'}")


def take(url: str, out: Path, width: int = 1400, height: int = 1800, text: str = "", dark: bool = False, timeout_s: float = 40) -> str:
    """Writes the picture and gives the text that stood on the page."""
    with tempfile.TemporaryDirectory(prefix="picture-") as profile:
        driver = browser(width, height, profile, dark)
        try:
            driver.get(url)
            settle(driver, text, timeout_s)
            driver.save_screenshot(str(out))
            return str(driver.execute_script(_CAPTURE))
        finally:
            driver.quit()


def main() -> int:
    parser = argparse.ArgumentParser(description="Take a picture of a page.")
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=1800)
    parser.add_argument("--wait-for", default="", metavar="TEXT")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--timeout", type=float, default=40)
    given = parser.parse_args()
    try:
        take(given.url, given.out, given.width, given.height, given.wait_for, given.dark, given.timeout)
    except PictureError as error:
        print(error, file=sys.stderr)
        return 5
    except ImportError:
        print("selenium is not installed: pip install selenium", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
