"""Messages that a producer of confluent-kafka is given, and reports of their delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka import looks
from spanreplay.seams.machine.brokers.kafka.confluent_clients import Sent, State, run_of
from spanreplay.seams.machine.brokers.kafka.reports import Report
from spanreplay.seams.machine.brokers.kafka.values import (
    KafkaFailure,
    build_error,
    build_message,
    show_error,
    show_headers,
    show_message,
    show_sent,
    uncarry,
)
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_PARAMETERS: Final = ("topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers")
_OF_BATCH: Final = ("topic", "messages", "partition", "callback", "on_delivery")
_REPORTED: Final = ("callback", "on_delivery")
_DEFAULTS: Final[Mapping[str, Any]] = {"partition": -1, "timestamp": 0}
_OWN_PARTS: Final = ("key", "value")


def show_parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a message that are compared."""
    shown: dict[str, Any] = {}
    for name, value in given.items():
        if name in _REPORTED or value is None or value == _DEFAULTS.get(name):
            continue
        shown[name] = show_headers(value) if name == "headers" else show_sent(value)
    return shown


def _take_callback(given: dict[str, Any], default: Any) -> Any:
    """Remove and return who is told of a message's delivery."""
    found = [given.pop(name, None) for name in _REPORTED]
    return next((each for each in found if each is not None), default)


def _expect(state: State, run: Run | None, callback: Any, given: Mapping[str, Any]) -> Sent:
    number = -1 if run is None else state.next_number(run)
    sent = Sent(run, number, callback, *(given.get(name) for name in _OWN_PARTS))
    if run is None:
        return sent
    sent.report = Report(run, lambda: state.describe("report", {}, Effect.READ))
    if is_replayed_here():
        state.sent[run.run_id, number] = sent
    return sent


def _report_later(state: State, run: Run, sent: Sent | None) -> None:
    """In a replay, have a message reported in a thread of ours if another run's look reported it when recorded."""
    if sent is not None and sent.report is not None and is_replayed_here():
        sent.report.make_later(lambda shown: reported(state, run, shown), lambda: None)


def _report_live(sent: Sent) -> Any:
    """Return what the library calls at the delivery of a message."""

    def report(error: Any, message: Any) -> Any:
        run = sent.run
        if run is None or sent.report is None or (run.is_ended and looks.looking_run() is not run):
            return sent.callback(error, message)

        def shown() -> list[Any]:
            parts = {name: each for name, each in show_message(message).items() if name not in _OWN_PARTS}
            return [sent.number, None if error is None else show_error(error), parts]

        if looks.looking_run() is run:
            return looks.call_back("delivery", shown, lambda: sent.callback(error, message))
        return sent.report.make(shown, lambda _: sent.callback(error, message))

    return report


def reported(state: State, run: Run, shown: list[Any]) -> None:
    """Tell the program, in a replay, of the delivery of a message."""
    number, error, parts = shown
    sent = state.sent.pop((run.run_id, number), None)
    if sent is None:
        return
    own = {name: each for name in _OWN_PARTS if (each := _to_bytes(getattr(sent, name))) is not None}
    sent.callback(None if error is None else build_error(error), build_message({**parts, **own}))


def _to_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def produce(real: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    """Give a producer a message."""
    run, state = run_of(producer)
    if state is None:
        return real(producer, *args, **kwargs)
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    callback = _take_callback(given, state.on_delivery)
    if len(args) > len(_PARAMETERS) or not (callback is None or callable(callback)):
        return real(producer, *args, **kwargs)  # the library refuses it

    def send() -> Any:
        reports = {} if sent is None else {"callback": _report_live(sent)}
        return real(producer, **given, **reports)

    sent = None if callback is None else _expect(state, run, callback, given)
    if run is None:
        return send()
    try:
        call = lambda: state.describe("produce", show_parts(given), Effect.IRREVERSIBLE)  # noqa: E731
        result = call_sync(call, lambda: state.awake(send))
        _report_later(state, run, sent)
        return result
    except KafkaFailure as failure:
        exc = uncarry(failure)
    except BaseException:
        if sent is not None and sent.run is not None:
            state.sent.pop((sent.run.run_id, sent.number), None)
        raise
    raise exc


def produce_batch(real: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    """Give a producer messages for one topic."""
    run, state = run_of(producer)
    given = {**dict(zip(_OF_BATCH, args, strict=False)), **kwargs}
    messages = given.pop("messages", None)
    if state is None or not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return real(producer, *args, **kwargs)
    default = _take_callback(given, state.on_delivery)
    own, lasting = [dict(each) for each in messages], len(messages)
    expected: list[Sent] = []
    for each in own:
        callback = _take_callback(each, default)
        if callback is not None:
            expected.append(_expect(state, run, callback, each))
            each["callback"] = _report_live(expected[-1])

    def send() -> Any:
        return real(producer, messages=own, **given)

    def live() -> Any:
        count = state.awake(send)
        errors = [[at, own[at]["_error"]] for at in range(lasting) if own[at].get("_error") is not None]
        return [count, [[at, show_error(error)] for at, error in errors]]

    if run is None:
        count = send()
        errors = [[at, each["_error"]] for at, each in enumerate(own) if each.get("_error") is not None]
    else:
        shown = {**show_parts(given), "messages": [show_parts(each) for each in messages]}
        count, recorded = call_sync(lambda: state.describe("produce_batch", shown, Effect.IRREVERSIBLE), live)
        errors = [[at, build_error(error)] for at, error in recorded]
        for sent in expected:
            _report_later(state, run, sent)
    for at, error in errors:
        messages[at]["_error"] = error
    return count
