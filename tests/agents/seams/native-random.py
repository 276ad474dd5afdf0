"""Random bytes of OpenSSL, and a call behind which they are written."""

import ssl

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return ssl.RAND_bytes(8), mark()
