"""Random numbers, and a call behind which they are written."""

import random

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return random.random(), random.randint(1, 10**9), random.choice(range(10**6)), mark()
