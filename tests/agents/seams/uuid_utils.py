"""UUIDs of native code, of both kinds, and a call behind which they are written."""

import uuid_utils
from uuid_utils import compat

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    made = uuid_utils.uuid4(), uuid_utils.uuid7(timestamp=1, nanos=2), compat.uuid7(), compat.uuid1(), compat.uuid4()
    return [f"{type(each).__module__} {each}" for each in made], mark()
