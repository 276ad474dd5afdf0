"""A log record, and a call behind which its time is written."""

import io
import logging

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)d %(relativeCreated)d %(process)d %(threadName)s"))
    logger = logging.getLogger("an.agent")
    logger.addHandler(handler)
    logger.warning("now")
    logger.removeHandler(handler)
    return text.getvalue(), mark()
