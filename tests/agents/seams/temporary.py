"""The name of a temporary folder, and a call behind it."""

import tempfile

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    with tempfile.TemporaryDirectory() as folder:
        return folder, mark()
