"""The clock, and a call behind which its reads are written."""

import time
from datetime import datetime

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return time.time(), time.monotonic_ns(), datetime.now().isoformat(), mark()
