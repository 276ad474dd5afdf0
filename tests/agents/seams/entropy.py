"""Secret random bytes, and a call behind which they are written."""

import os
import secrets

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return os.urandom(8), secrets.token_hex(8), mark()
