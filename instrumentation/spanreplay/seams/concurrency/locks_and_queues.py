"""Seam: objects that the agent's threads share: its locks (`threading`) and queues (`queue`).

Who takes a lock or an item next decides the contents of a shared list and which worker does which job. Only objects
that the agent's own code creates while it runs are observed. Attempts that need not succeed (`acquire(False)`, a
timeout) are noted if they failed.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType, ModuleType
from typing import Any, Final

from spanreplay.runtime.caller.caller import is_agent, is_handed_by_agent, is_own
from spanreplay.runtime.lanes import current_lane, thread_lane
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run

_getframe: Final = sys._getframe
_POOLS: Final = os.path.join(os.path.dirname(threading.__file__), "multiprocessing", "")  # noqa: PTH118, PTH120 -- light


class SharedObject:
    """One object that threads share, in the run in which it was made."""

    __slots__ = ("name", "run")

    def __init__(self, run: Run, sort: str) -> None:
        lane = current_lane(run.root_lane)
        self.run = run
        self.name = f"{sort} {lane.path}#{lane.next_index(sort)}"

    def shared_by(self) -> Run | None:
        """The run, if it is still active and has several threads."""
        run = self.run
        return run if run.lock_order.is_shared and not run.is_ended else None


class _LockType(type):
    """Makes the interpreter's own locks instances of its classes too: `isinstance` still recognises every lock."""

    _real_type: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or isinstance(instance, cls._real_type)


class _Lock(metaclass=_LockType):
    """A lock that is acquired in the recorded order; only the agent's code gets one instead of the interpreter's."""

    __slots__ = ("__weakref__", "_lock", "_shared")
    _real: Any = None
    _sort = ""

    def __new__(cls) -> Any:
        run = active_run()
        return cls.made_for(run) if run is not None and is_agent(_getframe(1)) else cls._real()

    @classmethod
    def made_for(cls, run: Run) -> Any:
        """Create a lock whose order is kept."""
        made: Any = super().__new__(cls)
        made._lock, made._shared = cls._real(), SharedObject(run, cls._sort)
        return made

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run: Run | None = self._shared.shared_by()
        if run is None:
            return bool(self._lock.acquire(blocking, timeout))
        lane = thread_lane(run.root_lane)
        if blocking and timeout == -1:
            run.lock_order.take(self._shared.name, lane.path, self._lock)
            return True
        is_wrong = timeout != -1 and (timeout < 0 or not blocking)  # which raises
        if is_wrong or running_loop() is not None or not is_own(_getframe(1)):
            return bool(self._lock.acquire(blocking, timeout))
        return run.order.attempt(self._lock, self._shared.name, lane, blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        run = self._shared.shared_by()
        if run is None:
            return bool(self._lock.acquire())
        run.lock_order.take(self._shared.name, thread_lane(run.root_lane).path, self._lock)
        return True

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)  # `locked`, and the methods of an RLock that a Condition uses

    def __repr__(self) -> str:
        return repr(self._lock)


class _RLock(_Lock):
    """Adds the methods with which a Condition releases and reacquires its lock."""

    __slots__ = ()

    def _release_save(self) -> Any:
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        run = self._shared.shared_by()
        if run is None:
            self._lock._acquire_restore(state)
        else:
            lane = thread_lane(run.root_lane)
            run.lock_order.retake(self._shared.name, lane.path, self._lock._acquire_restore, state)

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())


def _make_type(real: Any, name: str, base: type[_Lock]) -> type:
    members = {"_real": staticmethod(real), "_sort": name.lower(), "_real_type": type(real()), "__slots__": ()}
    members["__module__"] = threading.__name__  # pickled by name: `multiprocessing.Manager` sends it to its process
    return _LockType(name, (base,), members)


def _follow(queue: Any) -> None:
    """Note each item where the queue itself adds or removes it: under its own lock, once."""
    run = active_run()
    if run is None:
        return
    shared = queue._spanreplay_shared = SharedObject(run, "queue")
    for step in ("_put", "_get"):
        setattr(queue, step, _noted(shared, step, getattr(queue, step)))


def _noted(shared: SharedObject, step: str, real: Any) -> Any:
    def noted(*args: Any) -> Any:
        result = real(*args)
        run = shared.shared_by()
        if run is not None:
            run.lock_order.note(shared.name + step, thread_lane(run.root_lane).path)
        return result

    return noted


def _in_turn(step: str) -> Any:
    def wait(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
        shared: SharedObject | None = getattr(queue, "_spanreplay_shared", None)
        run = None if shared is None else shared.shared_by()
        if run is None or not run.order.keeps_turns:
            return wrapped(*args, **kwargs)
        is_blocking = kwargs.get("block", args[-2] if len(args) > (step == "_put") + 1 else True)
        if shared is not None and is_blocking:
            run.lock_order.wait(shared.name + step, thread_lane(run.root_lane).path)
        return wrapped(*args, **kwargs)

    return wait


def _init_condition(wrapped: Any, condition: Any, args: Any, kwargs: Any) -> None:
    run = active_run()
    is_plain = run is not None and (args[0] if args else kwargs.get("lock")) is None and is_own(_getframe(1))
    rlock: Any = threading.RLock
    if run is not None and is_plain and hasattr(rlock, "made_for"):
        wrapped(rlock.made_for(run))
    else:
        wrapped(*args, **kwargs)


def _is_for_agent(frame: FrameType) -> bool:
    """Whether the agent makes a queue here, directly or by creating a `multiprocessing.pool.ThreadPool`."""
    maker: FrameType | None = frame
    while maker is not None and maker.f_code.co_filename.startswith(_POOLS):
        maker = maker.f_back
    return is_own(frame) if maker is frame else is_handed_by_agent(maker)


def _make_simple(module: Any) -> type:
    """A `SimpleQueue` based on `Queue`, which is observed; its calls may be nested, also by signals and finalizers."""
    real = module.SimpleQueue

    class SimpleQueue(module.Queue, metaclass=_LockType):  # type: ignore[misc]  # its base is patched
        _real_type = real

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            is_ours = cls is not SimpleQueue or (active_run() is not None and _is_for_agent(_getframe(1)))
            return super().__new__(cls) if is_ours else real(*args, **kwargs)

        def __init__(self) -> None:
            super().__init__()
            self.mutex = mutex = threading.RLock()
            self.not_empty, self.not_full, self.all_tasks_done = (threading.Condition(mutex) for _ in range(3))
            if active_run() is not None:
                _follow(self)

    SimpleQueue.__module__ = real.__module__
    SimpleQueue.__qualname__ = real.__qualname__
    return SimpleQueue


def install(module: ModuleType, patches: Patches) -> None:
    """Patch `threading` or `queue`."""
    if module.__name__ == "threading":
        for name, base in (("Lock", _Lock), ("RLock", _RLock)):
            patches.replace(module, name, _make_type(getattr(module, name), name, base))
        patches.wrap(module.Condition, "__init__", _init_condition)
        return

    def init(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        if is_agent(_getframe(1)):
            _follow(queue)

    queue_class: Any = module.Queue
    patches.wrap(queue_class, "__init__", init)
    patches.wrap(queue_class, "put", _in_turn("_put"))
    patches.wrap(queue_class, "get", _in_turn("_get"))
    patches.replace(module, "SimpleQueue", _make_simple(module))
