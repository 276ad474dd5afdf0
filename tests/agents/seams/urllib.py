"""An opener of urllib."""

import os
from urllib.request import urlopen


def use():
    with urlopen(os.environ["URL"] + "/json", timeout=5) as response:
        return response.read().decode()


def fail():
    return urlopen(os.environ["NOBODY"] + "/json", timeout=5)


def abandon():
    with urlopen(os.environ["URL"] + "/pieces", timeout=5) as response:
        response.read(8)
