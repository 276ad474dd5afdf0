"""A variable that is read, and a call behind it."""

import os

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return os.environ.get("NOBODY"), mark()
