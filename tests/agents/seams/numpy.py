"""Random numbers of numpy that nobody seeded, and a call behind which their seeds are written."""

import numpy as np

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    return np.random.default_rng().integers(10**9), float(np.random.rand()), mark()
