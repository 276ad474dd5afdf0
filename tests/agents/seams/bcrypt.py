"""Salts of passwords, and a call behind which they are written."""

import bcrypt

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return bcrypt.gensalt(4), bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=4)), mark()
