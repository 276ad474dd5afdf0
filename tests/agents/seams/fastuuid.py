"""UUIDs of native code, one by one and many at once, and a call behind which they are written."""

import fastuuid

import spanreplay


@spanreplay.boundary("compute")
def mark():
    return "here"


def use():
    made = fastuuid.uuid4(), fastuuid.uuid7(), fastuuid.uuid1(), *fastuuid.uuid4_bulk(2), *fastuuid.uuid7_bulk(1)
    texts = [*fastuuid.uuid4_as_strings_bulk(2), *fastuuid.uuid7_as_strings_bulk(1)]
    return [f"{type(each).__module__} {each}" for each in made], texts, mark()
