"""Install Chromium from the system's packages, for the tests that open a page in a real browser.

Where that is not possible it says why and ends well: those tests are skipped then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return a Chromium that starts; on some systems the command of that name only points elsewhere."""
    for path in filter(None, map(shutil.which, NAMES)):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if version.returncode == 0:
            return path
    return None


def reason_against() -> str | None:
    """Say why it cannot be installed here; None where it can."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        return "there is no apt-get; install Chromium yourself, so that it is on the path as 'chromium'"
    if os.geteuid() != 0:
        return "only root may install it: sudo apt-get install chromium"
    return None


def install() -> str | None:
    """Install it; return why that failed."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
    ):
        done = subprocess.run(
            ["apt-get", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return f"apt-get {arguments[0]} failed: {lines[-1] if lines else done.returncode}"
    return None


def main() -> None:
    """Find Chromium, or install it, or say why not."""
    if (found := find_chromium()) is not None:
        print(f"Chromium is there: {found}")
        return
    failure = reason_against() or install()
    found = find_chromium()
    if found is not None:
        print(f"Chromium is installed: {found}")
    else:
        print(f"Chromium is not installed: {failure or 'the package holds none that starts'}.")
        print("The tests of the report's page are skipped.")


if __name__ == "__main__":
    main()
