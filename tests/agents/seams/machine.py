"""The machine's name, the number in the name of a message, and a call behind which they are written."""

import getpass
import os
import platform
import socket
from email.utils import make_msgid

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    facts = platform.platform(), platform.uname(), os.uname(), os.cpu_count(), getpass.getuser()
    return socket.gethostname(), platform.node(), facts, make_msgid(domain="a").split(".")[1], mark()
