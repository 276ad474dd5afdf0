"""A process that is started."""

import subprocess
import sys

SOURCE = "import secrets; print(secrets.token_hex(8))"


def use():
    return subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=True).stdout


def fail():
    return subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], capture_output=True, check=True)
