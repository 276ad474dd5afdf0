"""A urllib3 pool."""

import os

import urllib3


def use():
    return urllib3.request("GET", os.environ["URL"] + "/json").data.decode()


def fail():
    return urllib3.request("GET", os.environ["NOBODY"] + "/json", retries=False)


def abandon():
    response = urllib3.request("GET", os.environ["URL"] + "/pieces", preload_content=False)
    next(response.stream(8))
    response.close()
