"""The machine's name, the number in the name of a message, and a call behind which they are written."""

import platform
import socket
from email.utils import make_msgid

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return socket.gethostname(), platform.node(), make_msgid(domain="a").split(".")[1], mark()
