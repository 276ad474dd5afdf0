"""The number in the ids of sessions, and a call behind which it is written."""

import base64

import engineio

import spanreplay

engineio.Server.sequence_number += 5  # a server that has had sessions before
server = engineio.Server(async_mode="threading")


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return [base64.urlsafe_b64decode(server.generate_id())[-3:].hex() for _ in range(3)], mark()
