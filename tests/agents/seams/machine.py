"""The machine's name, and a call behind which it is written."""

import platform
import socket

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return socket.gethostname(), platform.node(), mark()
