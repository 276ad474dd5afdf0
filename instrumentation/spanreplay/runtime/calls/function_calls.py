"""Python calls as boundaries: functions and coroutines; generators are in `generators.py`.

The user's own exception always goes on unchanged. In a replay the body does not run unless the plan says live.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.model.errors import Suspended, Unserializable
from spanreplay.model.function_keys import LEAF_KEYSPECS, leaf_key_fields
from spanreplay.model.json_text import dump, load
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.runtime.calls import chains, passed, printed, tracebacks
from spanreplay.runtime.calls.bodies import BODY, describe_body
from spanreplay.runtime.calls.cancel import await_cancellation, is_cancellation
from spanreplay.runtime.calls.open_call import Crossing, begin_in, is_suppressed
from spanreplay.runtime.calls.returning import note_return
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.calls.turns import await_clock, await_turn, complete, wait_turn
from spanreplay.runtime.context_variables import call_in_own_context, is_collecting
from spanreplay.runtime.run import Run, active_run

T = TypeVar("T")
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_STACK = "stack"
"""In a call's meta: the stack of its exception."""
_CHAIN = "chain"
"""In a call's meta: the exceptions behind its exception."""
_TAG_TEXT = '"$type"'
_TOOL_KEYSPEC = "tool/1"
_KEYSPECS = {keyspec.partition("/")[0]: keyspec for keyspec in LEAF_KEYSPECS}


NO_META: Final[Mapping[str, Any]] = MappingProxyType({})


class FunctionCall(NamedTuple):
    """A Python call about to happen; `arguments` by parameter name."""

    kind: str
    name: str
    effect: str
    arguments: Mapping[str, Any]
    call_id: str = ""
    meta: Mapping[str, Any] = NO_META
    body: Any = None
    """The function that does the work, if the caller is a framework; named when no agent code is on the stack."""
    prints: bool = True
    """Whether a replay that does not run the body prints the body's standard output again."""
    call: Callable[[dict[str, Any]], Any] | None = None
    """Calls the body with other arguments; None if a plan can't change them."""
    beside: Mapping[str, Any] = NO_META
    """Further members of the request, as JSON values: not part of the key; compared by `replayer.compare.beside`."""
    is_contained: bool = False
    """Whether its effect stays in a replay's own files, however the call is answered."""


def with_call(
    function_call: FunctionCall, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> FunctionCall:
    """The function call with a way to call `function` with other arguments, if its arguments are the function's own.

    Arguments that a framework converted (a JSON text, a context) can't be changed on their way.
    """
    if function_call.call is not None:
        return function_call
    own = function_call.arguments
    is_own = all(value is kwargs.get(name, function_call) for name, value in own.items() if name != "*")
    if not is_own or (args and list(own.get("*", ())) != list(args)):
        return function_call

    def call(changed: dict[str, Any]) -> Any:
        others = {name: value for name, value in kwargs.items() if name not in own}
        named = {name: value for name, value in changed.items() if name != "*"}
        return function(*changed.get("*", ()), **others, **named)

    return function_call._replace(call=call)


def describe_function_call(run: Run, describe: Callable[[], FunctionCall]) -> Spec:
    """The function call that `describe` returns, redacted, with its key's fields."""
    function_call = describe()
    arguments = function_call.arguments
    hole = ""
    text = run.redactor.write_clean(arguments)
    if text:
        spec = _make_spec(function_call, text, None, {}, "", run)
    else:
        try:
            encoded = codec.encode(arguments if type(arguments) is dict else dict(arguments))
        except Unserializable as exc:
            hole, encoded = f"request {exc}", {"$unserializable": exc.path}
        spec = _describe(run, function_call, encoded, {}, hole)
    if run.resolver.may_amend and not hole:
        spec.amend = partial(_amend, run, function_call, text or encoded)
    return spec


def _amend(run: Run, function_call: FunctionCall, encoded: dict[str, Any] | str, patches: Any) -> Spec:
    """The call with a plan's patches applied to its arguments, or their text. Raises: ConfigError."""
    from spanreplay.runtime.edits.apply_patch import patch_arguments

    changed = patch_arguments(load(encoded) if isinstance(encoded, str) else encoded, patches)
    spec = _describe(run, function_call, changed, {}, "")

    def live() -> Any:
        if function_call.call is not None:
            return function_call.call({name: codec.decode(value) for name, value in changed.items()})
        boundary = f"{function_call.kind}:{function_call.name}"
        message = f"the arguments of {boundary} can't be changed on their way: set its response"
        raise run.resolver.broken(message)

    spec.live = live
    return spec


def _describe(
    run: Run, function_call: FunctionCall, encoded: dict[str, Any], counts: dict[str, int], hole: str
) -> Spec:
    redacted = run.redactor.value(encoded, counts)
    fields = leaf_key_fields(_KEYSPECS.get(function_call.kind, _TOOL_KEYSPEC), function_call.name, redacted)
    return _make_spec(function_call, dump(redacted), fields, counts, hole, run)


def _make_spec(
    function_call: FunctionCall,
    arguments: str,
    fields: Mapping[str, Any] | None,
    counts: dict[str, int],
    hole: str,
    run: Run,
) -> Spec:
    kind, name, effect, _, call_id, meta, body, prints, _, beside, is_contained = function_call
    keyspec = _KEYSPECS.get(kind, _TOOL_KEYSPEC)
    rest = f",{dump(run.redactor.value(dict(beside), counts))[1:-1]}" if beside else ""
    request = f'{{"arguments":{arguments}{rest}}}'
    own = dict(meta) if meta else {}
    if body is not None and (digest := describe_body(body)):
        own[BODY] = digest
    spec = Spec(kind, name, effect, keyspec, fields, request, call_id, own, counts, hole, body, None, prints)
    if is_contained:
        spec.is_contained = True
    return spec


def _close_value(crossing: Crossing, member: str, value: Any, outcome: Outcome) -> None:
    spec, redactor = crossing.spec, crossing.run.redactor
    try:
        encoded = codec.encode(value) if member != "error" else codec.encode_exception(value)
        size = len(dump(encoded))
        if size > config.BODY_BYTES_MAX:  # an oversized value is not redacted first, which takes seconds
            crossing.run.count("truncated")
            crossing.close(outcome, dump({"truncated": size}))
            return
        response, spec.raw = {member: redactor.value(encoded, spec.redactions)}, {member: encoded}
    except Unserializable as exc:
        spec.hole = spec.hole or f"{member} {exc}"
        response = {"unserializable": exc.path, "type": exc.type_name}
    crossing.close(outcome, dump(response))


@measured
def _close_ok(crossing: Crossing, value: Any) -> None:
    try:
        text = crossing.run.redactor.write_clean(value)
        if text:
            crossing.close(Outcome.OK, f'{{"value":{text}}}')
        else:
            _close_value(crossing, "value", value, Outcome.OK)
    except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
        guard.report_failure("recording a result", exc)


def _note_stack(crossing: Crossing, exc: BaseException) -> None:
    spec, described = crossing.spec, chains.describe(exc)
    spec.meta[_STACK] = tracebacks.describe(exc)
    own = described[chains.EXCEPTIONS][0]
    del own[chains.STACK]
    if own:  # refers to other exceptions
        spec.meta[_CHAIN] = chains.redact(described, crossing.run.redactor)


@measured
def close_error(crossing: Crossing, exc: BaseException) -> None:
    """Record that a live call raised, with the exception's stack."""
    outcome = Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED
    guard.guarded("recording a stack", _note_stack, crossing, exc)
    guard.guarded("recording an exception", _close_value, crossing, "error", exc, outcome)


def load_response(crossing: Crossing) -> dict[str, Any]:
    """The recorded response; closes the crossing with it. Raises: ReplayMiss if it can't be served."""
    recorded = crossing.served
    if recorded is None:
        raise AssertionError("only a served crossing has a recorded response")
    if recorded.meta:
        crossing.spec.meta.update(recorded.meta)
    crossing.close(_OUTCOMES.get(recorded.outcome) or Outcome(recorded.outcome), recorded.response)
    try:
        response: dict[str, Any] = load(recorded.response)
    except ValueError as exc:
        raise crossing.answers.broken(f"the response of call {recorded.number} is not JSON") from exc
    if "unserializable" in response or "truncated" in response:
        raise crossing.answers.at_hole(
            f"the response of call {recorded.number} ({recorded.boundary}) was not recorded: "
            f"{response.get('type', 'too long')} at {response.get('unserializable', '$')}"
        )
    return response


def decode_value(crossing: Crossing, encoded: Any) -> Any:
    """Rebuild a recorded value. Raises: ReplayMiss if that fails."""
    try:
        return codec.decode(encoded)
    except Exception as exc:
        why = crossing.run.redactor.text(str(exc))  # it may mention a value that the recording hides
        raise crossing.answers.type_changed(crossing, "response", why) from exc


def _value_of(crossing: Crossing, response: dict[str, Any]) -> Any:
    """Rebuild the recorded result. Raises: ReplayMiss if that fails."""
    value, recorded = response.get("value"), crossing.served
    # JSON without a tag decodes to itself, and nobody else holds it
    is_plain = recorded is not None and _TAG_TEXT not in recorded.response
    return value if is_plain else decode_value(crossing, value)


def decode_error(crossing: Crossing, encoded: Any) -> BaseException:
    """Rebuild a recorded exception. Raises: ReplayMiss if that fails."""
    try:
        return codec.decode_exception(encoded)
    except Exception as exc:
        why = crossing.run.redactor.text(str(exc))
        message = f"the exception of call {crossing.number} ({crossing.boundary}) can't be rebuilt: {why}"
        raise crossing.answers.broken(message) from exc


def begin_function_call(describe: Callable[[], FunctionCall]) -> Crossing | None:
    """Open a call; None when nothing is recorded here. Raises: ReplayMiss.

    Where instrumentation is suppressed nothing is recorded, but a body must not run live in a replay either.
    """
    run = active_run()
    if run is None:
        return None
    if not is_suppressed():
        return begin_in(run, describe_function_call, describe)
    message = f"a call was made at {ids.find_caller(2)} where instrumentation is suppressed"
    run.resolver.leave_out(f"{message}: it is not in this run", f"{message}: it was not recorded")
    return None


def call_sync(describe: Callable[[], FunctionCall], live: Callable[[], T]) -> T:
    """Run or serve a plain call."""
    crossing = begin_function_call(describe)
    return live() if crossing is None else finish_sync(crossing, live)


def finish_sync(crossing: Crossing, live: Callable[[], T]) -> T:
    """Run or serve a plain call that has been opened."""
    error, value = _serve(crossing) if crossing.served is not None else _run(crossing, live)
    if crossing.run.lock_order.is_shared:
        note_return(crossing.run)
    if error is None:
        result: T = value
        return result
    context = error.__context__
    try:
        raise error  # at the same line, live and served: it is in the traceback
    finally:
        error.__context__ = context  # `raise` sets it to the exception that the caller is handling
        del error, context


def _serve(crossing: Crossing) -> tuple[BaseException | None, Any]:
    printed.write(crossing)
    wait_turn(crossing)
    response = load_response(crossing)
    for waiting in passed.put_late(crossing):
        waiting.close()
    if "error" in response:
        return _restack(crossing, decode_error(crossing, response["error"])), None
    return None, _value_of(crossing, response)


def _restack(crossing: Crossing, error: BaseException) -> BaseException:
    meta = crossing.spec.meta
    guard.guarded("rebuilding a stack", tracebacks.restore, error, meta.get(_STACK), crossing.find_file)
    behind = meta.get(_CHAIN, {chains.EXCEPTIONS: [{}]})
    guard.guarded("rebuilding a stack", chains.restore, error, behind, crossing.find_file)
    return error


def _run(crossing: Crossing, live: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    if is_collecting():
        return call_in_own_context(_run, crossing, live)
    try:
        with crossing:
            result = live() if crossing.spec.live is None else crossing.spec.live()
    except Suspended:  # the call stays open
        raise
    except BaseException as exc:  # noqa: BLE001 -- raised by the caller
        error = exc
    else:
        _close_ok(crossing, result)
        return None, result
    close_error(crossing, error)  # where it is not being handled any more
    return error, None


async def call_async(describe: Callable[[], FunctionCall], live: Callable[[], Awaitable[T]]) -> T:
    """Run or serve a coroutine call."""
    crossing = begin_function_call(describe)
    if crossing is None:
        return await live()
    error, value = await (_serve_async(crossing) if crossing.served is not None else _run_async(crossing, live))
    if error is None:
        result: T = value
        return result
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context


async def _serve_async(crossing: Crossing) -> tuple[BaseException | None, Any]:
    await _print_in_turn(crossing)
    if crossing.served is not None and crossing.served.outcome != Outcome.CANCELLED.value:
        await await_turn(crossing)
    response = load_response(crossing)
    for waiting in passed.put_late(crossing):
        await waiting
    if "error" not in response:
        return None, decode_value(crossing, response.get("value"))
    error = decode_error(crossing, response["error"])
    if is_cancellation(error):
        error = await _await_cancelled(crossing)
    return _restack(crossing, error), None


async def _await_cancelled(crossing: Crossing) -> BaseException:
    """Wait for a recorded cancellation to happen again, and return it. Raises: ReplayMiss."""
    try:
        await await_cancellation(crossing)
    except BaseException as exc:
        if is_cancellation(exc):
            return exc
        raise
    raise AssertionError("waiting for a cancellation never ends otherwise")


async def _print_in_turn(crossing: Crossing) -> None:
    """Print a coroutine's recorded output at the recorded places."""
    rows, recorded = printed.rows_of(crossing), crossing.served
    if not rows or recorded is None:
        return
    clocks = recorded.clocks
    try:
        for number, row in enumerate(rows):
            await await_clock(crossing, clocks[number] if number < len(clocks) else -1, row[2])
            waiting = printed.write_row(crossing, row)
            if waiting is not None:
                await waiting
    except BaseException:
        complete(crossing.answers.gate, *clocks, recorded.end_seq)  # given up: nobody has to wait for the rest
        raise


async def _run_async(crossing: Crossing, live: Callable[[], Awaitable[Any]]) -> tuple[BaseException | None, Any]:
    crossing.note_opened()
    try:
        with crossing:
            result = await (live() if crossing.spec.live is None else crossing.spec.live())
    except Suspended:  # the call stays open
        raise
    except BaseException as exc:  # noqa: BLE001 -- raised by the caller
        error = exc
    else:
        _close_ok(crossing, result)
        return None, result
    close_error(crossing, error)  # where it is not being handled any more
    return error, None
