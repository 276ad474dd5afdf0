"""Requests of confluent-kafka's admin client: the request is a call, and so is the end of each future that it gives.

librdkafka ends them in a thread of its own. In a replay a thread of ours does so, at the recorded turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka.calls import hide_secrets
from spanreplay.seams.machine.brokers.kafka.confluent_clients import State, run_of
from spanreplay.seams.machine.brokers.kafka.confluent_methods import METHODS
from spanreplay.seams.machine.brokers.kafka.python_clients import effect_of
from spanreplay.seams.machine.brokers.kafka.reports import Report
from spanreplay.seams.machine.brokers.kafka.values import (
    KafkaFailure,
    build,
    is_of_client,
    make_failure,
    show,
    uncarry,
)
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_SYNC: Final = METHODS["_AdminClientImpl"]
_TIMES: Final = ("request_timeout", "operation_timeout")
_ONE: Final = "one"


def _describe_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {"*": list(args), **kwargs}
    given = {**given, **given.pop("kwargs", {})}
    shown = {name: _show_argument(value) for name, value in given.items() if name not in _TIMES}
    return {name: hide_secrets(value) for name, value in shown.items()}


def _show_argument(value: Any) -> Any:
    """Return an argument; objects in C by their attributes."""
    if isinstance(value, (list, tuple)):
        return [_show_argument(each) for each in value]
    if type(value).__name__ in ("NewTopic", "NewPartitions"):
        names = [name for name in dir(type(value)) if not name.startswith("_")]
        return {name: own for name in names if not callable(own := getattr(value, name))}
    return show(value)


def _request(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    effect = effect_of(name)

    def request(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(client)
        if run is None or state is None:
            return wrapped(*args, **kwargs)
        made: list[Any] = []

        def live() -> Any:
            found = state.awake(lambda: wrapped(*args, **kwargs))
            made.append(found)
            return [show(key) for key in found] if isinstance(found, dict) else _ONE

        try:
            keys = call_sync(lambda: state.describe(name, _describe_arguments(wrapped, args, kwargs), effect), live)
        except KafkaFailure as failure:
            exc = uncarry(failure)
        else:
            return _give(state, run, name, keys, made[0] if made else None)
        raise exc

    return request


def _give(state: State, run: Run, name: str, keys: Any, real: Any) -> Any:
    """Return the futures for the program."""
    if keys == _ONE:
        return _follow(state, run, name, real)
    if real is not None:
        return {key: _follow(state, run, name, each) for key, each in real.items()}
    return {build(key): _follow(state, run, name, None) for key in keys}


def _follow(state: State, run: Run, name: str, real: Any) -> Any:
    """Return a future that ends as the library's own."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    report = Report(run, lambda: state.describe(f"{name}.result", {}, Effect.READ))

    def end(told: list[Any]) -> None:
        kind, value = told
        if kind == "value":
            future.set_result(real.result() if real is not None else build(value))
        elif real is not None:
            future.set_exception(real.exception())
        else:
            future.set_exception(value if isinstance(value, BaseException) else uncarry(KafkaFailure(*value)))

    def tell() -> list[Any]:
        error = real.exception()
        if error is None:
            return ["value", show(real.result())]
        return ["error", list(make_failure(error).args) if is_of_client(type(error)) else error]

    if is_replayed_here():
        report.make_later(end, lambda: None)
    else:
        real.add_done_callback(lambda _: report.make(tell, end))
    return future


def install(module: Any, patches: Patches) -> None:
    """Patch the module of the admin client. Raises: AttributeError if it is not as expected."""
    cls = module.AdminClient
    require(cls, "create_topics", "list_topics")
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(member) and name not in _SYNC:
            patches.wrap(cls, name, _request(name))
