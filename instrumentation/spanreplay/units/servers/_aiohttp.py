"""Unit: aiohttp's own server, started by `run_app`, `python -m aiohttp.web`, a runner or gunicorn's worker.

A server that handles signals is the purpose of its process, so its requests are units. A server without them has no
units if its own process sends it requests; nor has a server outside the main thread.
In a replay no site is opened; when the program opens the first one, the recorded request waits for the start to end.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.distributions import find_start
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import was_asked
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.aiohttp_web.exchange import RecordedExchange, find_exchange, find_exchange_of
from spanreplay.units.aiohttp_web.replay import ReplayedExchange, replay_request_of
from spanreplay.units.aiohttp_web.websocket import take_over
from spanreplay.units.http_exchange import PART
from spanreplay.units.play import end_replay, is_replay, is_replay_of_unit, play_each
from spanreplay.units.start import has_units

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

logger = logging.getLogger(__name__)

_MODULE: Final = "aiohttp.web"
_FACTORY: Final = re.compile(r"[\w.]+:[A-Za-z_]\w*")
"""The application argument of `python -m aiohttp.web`."""
_services: Final[weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()
"""Server → whether it is the purpose of its process (handles signals), not a helper of other work."""
_SITES: Final = ("TCPSite", "UnixSite", "SockSite", "NamedPipeSite")
_playing: Final[set[asyncio.Task[None]]] = set()


def install(module: Any, patches: Patches) -> None:
    """Patch one of aiohttp's modules."""
    if module.__name__ == "aiohttp.web_runner":
        for name in _SITES:
            patches.wrap(getattr(module, name), "start", _open)
    elif module.__name__ == "aiohttp.web_fileresponse":
        patches.wrap(module.FileResponse, "_sendfile", _send_file)
    elif module.__name__ == "aiohttp.web_ws":
        patches.wrap(module.WebSocketResponse, "_post_start", _shake_hands)
    else:
        patches.wrap(module.RequestHandler, "_handle_request", _handle)
        patches.wrap(module.RequestHandler, "handle_error", _fail)
        patches.wrap(module.StreamResponse, "_prepare_headers", _prepare_headers)
        patches.wrap(module.RequestHandler, "connection_lost", _lose)
        for name in ("_read_nowait", "_read_nowait_chunk"):
            patches.wrap(module.StreamReader, name, _read)
        patches.wrap(module.StreamReader, "_wait", _wait)


# ── sites ───────────────────────────────────────────────────────────────────────────────────────────
async def _open(wrapped: Any, site: Any, args: Any, kwargs: Any) -> Any:
    runner = site._runner
    is_main = threading.current_thread() is threading.main_thread()
    if is_replay():
        if is_main and _is_played(runner):
            return await _open_none(site)
    elif is_main:
        guard.guarded(PART, _note_service, runner)
    return await wrapped(*args, **kwargs)


def _note_service(runner: Any) -> None:
    _services[runner.server] = runner._handle_signals


def _is_played(runner: Any) -> bool:
    """Whether this replay is one of a unit, or of a process whose units have their own runs."""
    run = active_run()
    if run is None or run.resolver.keeps:
        return False
    return is_replay_of_unit() or runner._handle_signals or has_units(run.resolver.answers.recording)


async def _open_none(site: Any) -> None:
    from aiohttp.web_runner import BaseSite

    await BaseSite.start(site)
    run = active_run()
    if run is None or _playing:
        return
    with inside_lane(Lane(f"{run.root_lane.path}/units")):  # the numbering of the program's own tasks is unaffected
        _playing.add(asyncio.get_running_loop().create_task(_play(site._runner.server)))


async def _play(server: Any) -> None:
    try:
        await play_each(partial(replay_request_of, server))
    except Exception:
        logger.exception("the recorded request could not be given to the application")
    end_replay()


# ── requests ────────────────────────────────────────────────────────────────────────────────────────
async def _handle(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange(protocol)
    if isinstance(exchange, ReplayedExchange):
        return await exchange.serve(wrapped, *args, **kwargs)
    request = args[0]
    is_unit = guard.guarded(PART, _is_unit, protocol, request)
    run = guard.guarded(PART, factory.open_unit, _name()) if is_unit else None
    if run is None:
        return await wrapped(*args, **kwargs)
    recorded = RecordedExchange(run, protocol)
    with factory.inside_unit(run):
        guard.guarded(PART, recorded.watch, request)
        guard.guarded(PART, recorded.note_request, request)
        try:
            result = await wrapped(*args, **kwargs)
        except BaseException as exc:
            guard.guarded(PART, recorded.end, exc)
            raise
        finally:
            recorded.leave()
        guard.guarded(PART, recorded.end, None)
    return result


def _is_unit(protocol: Any, request: Any) -> bool:
    """Whether a request is valid and a unit: its server is a service, or the client is not this process."""
    from aiohttp.web_protocol import ERROR

    is_service = _services.get(protocol._manager)
    if is_service is None or request._message is ERROR or protocol.transport is None:
        return False
    address = protocol.transport.get_extra_info("sockname")
    return is_service or not (isinstance(address, tuple) and was_asked(address[1]))


def _name() -> str:
    """Return the application argument of `python -m aiohttp.web`; '' for other programs, whose name is good enough."""
    if find_start() != ("module", _MODULE):
        return ""
    return next((each for each in sys.argv[1:] if _FACTORY.fullmatch(each)), "")


def _fail(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange(protocol)
    if exchange is not None:
        exchange.raised = kwargs.get("exc", args[2] if len(args) > 2 else None)
    return wrapped(*args, **kwargs)


def _lose(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange(protocol)
    if exchange is not None:
        exchange.lose()
    return wrapped(*args, **kwargs)


async def _prepare_headers(wrapped: Any, response: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange(getattr(response._req, "protocol", None))
    if exchange is not None:
        exchange.answer, exchange.is_dated_by_server = response, "Date" not in response.headers
    return await wrapped(*args, **kwargs)


def _read(wrapped: Any, reader: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange_of(reader)
    return wrapped(*args, **kwargs) if exchange is None else exchange.read(wrapped, *args, **kwargs)


async def _wait(wrapped: Any, reader: Any, args: Any, kwargs: Any) -> Any:
    exchange = find_exchange_of(reader)
    return await (wrapped(*args, **kwargs) if exchange is None else exchange.wait(wrapped, *args, **kwargs))


async def _send_file(wrapped: Any, response: Any, args: Any, kwargs: Any) -> Any:
    """Send a file without `sendfile`, through the application's writer, which is recorded."""
    request, file, offset, count = args
    if find_exchange(request.protocol) is None:
        return await wrapped(*args, **kwargs)
    from aiohttp.web_response import StreamResponse

    return await response._sendfile_fallback(await StreamResponse.prepare(response, request), file, offset, count)


def _shake_hands(wrapped: Any, response: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    exchange = find_exchange(args[0].protocol)
    if exchange is not None:
        exchange.note(take_over, response, exchange)
    return result
