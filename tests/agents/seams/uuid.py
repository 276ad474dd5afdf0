"""UUIDs, and a call behind which they are written."""

import uuid

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return str(uuid.uuid1()), uuid.uuid4().hex, mark()
