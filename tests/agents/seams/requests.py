"""A requests session."""

import os

import requests


def use():
    return requests.get(os.environ["URL"] + "/json", timeout=5).text


def fail():
    return requests.get(os.environ["NOBODY"] + "/json", timeout=5)


def abandon():
    with requests.get(os.environ["URL"] + "/pieces", stream=True, timeout=5) as response:
        next(response.iter_content(8))
