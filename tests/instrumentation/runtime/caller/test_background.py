"""A library's own thread is not part of a run, unless it works on a unit."""

from __future__ import annotations

import threading

from spanreplay.runtime.caller.caller import handed
from spanreplay.runtime.caller.running import RUN


def _in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_p2_a_library_s_thread_works_for_the_unit_that_it_enters() -> None:
    """A server's thread belongs to the request while it serves it, and to the library again afterwards."""
    seen: list[bool] = []

    def serve() -> None:
        handed.is_background = True
        seen.append(handed.is_background)
        token = RUN.set("a unit")
        seen.append(handed.is_background)
        RUN.reset(token)
        seen.append(handed.is_background)

    _in_thread(serve)
    assert seen == [True, False, True]


def test_p2_a_library_s_thread_that_a_unit_started_stays_the_library_s() -> None:
    """The thread's run is the unit's, but its own calls belong to the library."""
    seen: list[bool] = []

    def flush() -> None:
        handed.is_background = True
        RUN.set("a unit")
        handed.enter_run()
        seen.append(handed.is_background)

    _in_thread(flush)
    assert seen == [True]
