"""A datagram that is sent, and one that is too long."""

import os
import socket


def _send(data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(data, ("127.0.0.1", int(os.environ["PORT"])))


def use():
    return _send(b"paid:10|c")


def fail():
    return _send(bytes(70_000))
