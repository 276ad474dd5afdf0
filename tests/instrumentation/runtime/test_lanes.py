"""Lanes are named after the place where concurrency is created, whatever runs first."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace

from spanreplay.runtime import lanes
from spanreplay.runtime.lanes import Clock, Lane, current_lane, label_of
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run, root_lane_of_active_run, set_process_run
from spanreplay.seams.concurrency import lanes_of_work
from spanreplay.seams.concurrency.carried import carried
from support.in_process import MemoryProcessor, here, inside, make_run
from support.pythons import since

DEADLINE_S = 30
MANY = 16_000
HOOKED = (
    (asyncio.base_events.BaseEventLoop, "create_task"),
    (ThreadPoolExecutor, "submit"),
    (threading.Thread, "start"),
)


@pytest.fixture
def run() -> Iterator[Run]:
    """An active run with patched lanes."""
    with inside(make_run(MemoryProcessor())) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool of four threads."""
    with ThreadPoolExecutor(4) as made:
        yield made


async def where() -> str:
    """The lane path of the task that awaits this."""
    return here()


def in_thread(**thread: Any) -> None:
    """Start a thread and wait for its end."""
    started = threading.Thread(**thread)
    started.start()
    started.join(DEADLINE_S)


def test_code_without_a_lane_is_in_main(run: Run) -> None:
    """Code outside any created concurrency runs in `main`."""
    assert here() == "main"


def test_n1_gather_names_each_coroutine_by_its_place(run: Run) -> None:
    """The n-th coroutine given to gather is `t:<name>#<n>` of the lane that calls gather."""

    async def main() -> list[str]:
        return list(await asyncio.gather(where(), where(), where()))

    assert asyncio.run(main()) == [f"main/t:main#1/t:where#{n}" for n in (1, 2, 3)]


def test_n1_tasks_are_named_however_they_are_made(run: Run) -> None:
    """create_task, ensure_future and wait_for all use the next number of the coroutine's name."""

    async def main() -> list[str]:
        made = asyncio.create_task(where())
        ensured = asyncio.ensure_future(where())
        return [await made, await ensured, await asyncio.wait_for(asyncio.create_task(where()), DEADLINE_S)]

    assert asyncio.run(main()) == [f"main/t:main#1/t:where#{n}" for n in (1, 2, 3)]


@since(3, 11)
def test_n1_task_group_names_its_tasks(run: Run) -> None:
    """Tasks of a TaskGroup are lanes below the task that holds the group."""

    async def main() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(where()) for _ in range(2)]
        return [task.result() for task in tasks]

    assert asyncio.run(main()) == ["main/t:main#1/t:where#1", "main/t:main#1/t:where#2"]


@since(3, 12)
def test_n1_eager_tasks_start_in_their_own_lane(run: Run) -> None:
    """A task that runs inside create_task is already in its lane."""

    async def main() -> str:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # 3.12
        return await asyncio.create_task(where())

    assert asyncio.run(main()) == "main/t:main#1/t:where#1"


@since(3, 11)
def test_n1_task_with_its_own_context_is_in_its_lane(run: Run) -> None:
    """A Context given to create_task gets the task's lane."""

    async def main() -> list[str]:
        contexts = [contextvars.copy_context() for _ in range(2)]
        return [await asyncio.create_task(where(), context=context) for context in contexts]

    assert asyncio.run(main()) == ["main/t:main#1/t:where#1", "main/t:main#1/t:where#2"]


@since(3, 11)
def test_n1_task_that_a_callback_makes_in_its_own_context_is_in_its_lane(run: Run) -> None:
    """A framework hands work to the loop with a copy of its Context, in which the callback makes the task."""

    def submit() -> asyncio.Future[str]:
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        found: asyncio.Future[str] = loop.create_future()

        def make() -> None:
            task = loop.create_task(where(), context=context)
            task.add_done_callback(lambda done: found.set_result(done.result()))

        loop.call_soon_threadsafe(make, context=context)
        return found

    async def main() -> list[str]:
        return [*await asyncio.gather(submit(), submit()), await where()]

    assert asyncio.run(main()) == ["main/t:main#1/t:where#1", "main/t:main#1/t:where#2", "main/t:main#1"]


def test_n1_executor_work_is_named_through_its_wrappers(run: Run) -> None:
    """to_thread and run_in_executor use the function's name, not `partial` or `Context.run`."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        return [
            await asyncio.to_thread(here),
            await loop.run_in_executor(None, here),
            await loop.run_in_executor(None, functools.partial(here, 1)),
            await loop.run_in_executor(None, functools.partial(contextvars.copy_context().run, here)),
        ]

    assert asyncio.run(main()) == [f"main/t:main#1/x:here#{n}" for n in (1, 2, 3, 4)]


def _next_tick(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda: (here,),
        lambda: (here, 1),
        lambda: (functools.partial(here, 1),),
        lambda: (contextvars.copy_context().run, here),
        lambda: (functools.partial(contextvars.copy_context().run, here),),
        lambda: (functools.partial(contextvars.copy_context().run, functools.partial(here, 1)),),
        lambda: (_next_tick, contextvars.copy_context().run, here),
        lambda: (contextvars.copy_context().run, contextvars.copy_context().run, here),
    ],
    ids=["plain", "args", "partial", "context", "partial_context", "partial_twice", "next_tick", "two_contexts"],
)
def test_n1_submitted_work_is_named_below_its_wrappers(
    run: Run, pool: ThreadPoolExecutor, arrange: Callable[[], tuple[Any, ...]]
) -> None:
    """For any wrapper given to submit, the lane has the inner function's name, and its code is in that lane."""
    assert [pool.submit(*arrange()).result(DEADLINE_S) for _ in range(2)] == ["main/x:here#1", "main/x:here#2"]


def test_n1_hidden_copy_of_the_context_is_followed(run: Run, pool: ThreadPoolExecutor) -> None:
    """A function that enters a Context copied by its submitter is in its own lane, not in the submitter's."""
    context = contextvars.copy_context()

    def hidden() -> str:
        return context.run(here)

    assert pool.submit(hidden).result(DEADLINE_S) == "main/x:hidden#1"


def test_n1_map_names_each_call(run: Run, pool: ThreadPoolExecutor) -> None:
    """executor.map gives each item the next number, in the order of the items."""
    assert list(pool.map(here, range(3))) == ["main/x:here#1", "main/x:here#2", "main/x:here#3"]


def test_n1_langchain_executor_names_each_call(run: Run) -> None:
    """langchain's ContextThreadPoolExecutor, which copies contexts, gives the same names as any pool."""
    config = pytest.importorskip("langchain_core.runnables.config")
    with config.ContextThreadPoolExecutor(2) as executor:
        assert executor.submit(here).result(DEADLINE_S) == "main/x:here#1"
        assert list(executor.map(here, range(2))) == ["main/x:_wrapped_fn#1", "main/x:_wrapped_fn#2"]


@pytest.mark.parametrize("wrap", [lambda work: work, lambda work: functools.partial(work)], ids=["plain", "partial"])
def test_n1_threads_are_named_by_their_target(run: Run, wrap: Callable[[Any], Any]) -> None:
    """A thread's lane has its target's name, even inside a partial."""
    seen: list[str] = []

    def work() -> None:
        seen.append(here())

    in_thread(target=wrap(work))
    in_thread(target=wrap(work))
    assert seen == ["main/th:work#1", "main/th:work#2"]


def test_n1_thread_that_runs_in_a_copied_context_has_its_lane(run: Run) -> None:
    """Two threads with target=copy_context().run are two lanes, although both copied Contexts say `main`."""
    seen: list[str] = []

    def work() -> None:
        seen.append(here())

    for _ in range(2):
        in_thread(target=contextvars.copy_context().run, args=(work,))
    assert seen == ["main/th:work#1", "main/th:work#2"]


def test_n1_thread_subclasses_and_timers_are_named_by_their_class(run: Run) -> None:
    """A thread without a target is named by its class."""
    seen: list[str] = []

    class Worker(threading.Thread):
        def run(self) -> None:
            seen.append(here())

    worker = Worker()
    worker.start()
    worker.join(DEADLINE_S)
    timer = threading.Timer(0, lambda: seen.append(here()))
    timer.start()
    timer.join(DEADLINE_S)
    assert seen == ["main/th:Worker#1", "main/th:Timer#1"]


def test_thread_started_twice_still_fails_as_python_says(run: Run) -> None:
    """Starting a thread twice raises RuntimeError, and uses no number."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join(DEADLINE_S)
    with pytest.raises(RuntimeError, match="once"):
        thread.start()
    assert "run" not in vars(thread)
    assert run.root_lane.child("th:<lambda>").path == "main/th:<lambda>#2"


def test_n1_pool_workers_take_no_numbers(run: Run) -> None:
    """Threads that a pool starts on demand are not lanes, because their number depends on timing."""
    gate = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        futures = [executor.submit(lambda: gate.wait(DEADLINE_S) and here()) for _ in range(4)]
        gate.set()
        found = [future.result(DEADLINE_S) for future in futures]
    assert sorted(map(str, found)) == [f"main/x:<lambda>#{n}" for n in (1, 2, 3, 4)]
    assert list(run.root_lane._children or ()) == ["x:<lambda>"]


def test_n1_other_names_do_not_shift_numbers(run: Run) -> None:
    """Other work of a library under another name leaves all other numbers unchanged."""

    async def library() -> None:
        return None

    async def main() -> list[str]:
        plain = await asyncio.gather(where(), where())
        mixed = await asyncio.gather(where(), library(), where())
        return [*plain, *[path for path in mixed if path]]

    assert asyncio.run(main()) == [f"main/t:main#1/t:where#{n}" for n in (1, 2, 3, 4)]


def test_worker_keeps_nothing_of_the_run_it_worked_for(pool: ThreadPoolExecutor) -> None:
    """A pool thread that worked for one run works in the next run's lane, and with the agent's span."""
    seen: list[tuple[str, bool]] = []

    def work() -> None:
        found = active_run()
        assert found is not None
        seen.append((found.run_id, trace.get_current_span() is trace.INVALID_SPAN))

    runs = [make_run(MemoryProcessor()) for _ in range(2)]
    for made in runs:
        with inside(made):
            pool.submit(work).result(DEADLINE_S)
    assert seen == [(made.run_id, True) for made in runs]
    assert pool.submit(active_run).result(DEADLINE_S) is None


def test_p9_thread_of_the_process_run_has_no_span_of_ours(run: Run) -> None:
    """If a run belongs to the process, a thread with an empty context is part of it and has no current span."""
    seen: list[tuple[Run | None, bool]] = []

    def look() -> None:
        seen.append((active_run(), trace.get_current_span() is trace.INVALID_SPAN))

    made = make_run(MemoryProcessor())
    set_process_run(made)
    try:
        with inside(made):
            context = contextvars.Context()
            context.run(in_thread, target=look)
    finally:
        set_process_run(None)
    assert seen == [(made, True)]


def test_work_that_raises_leaves_the_worker_as_it_was(run: Run) -> None:
    """After its work raised, a pool thread has no lane and follows no parent."""

    def fail() -> None:
        raise ValueError(here())

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ValueError, match=r"main/x:fail#1"):
            executor.submit(fail).result(DEADLINE_S)
        assert executor.submit(here).result(DEADLINE_S) == "main/x:here#1"
        assert executor.submit(lambda: lanes.thread_state.forced).result(DEADLINE_S) is not None
    assert lanes.thread_state.forced is None


def test_nothing_happens_without_a_run() -> None:
    """With lanes patched and no run, threads and tasks start as usual."""
    patches = Patches()
    lanes_of_work.install(patches, root_lane_of_active_run, carried)
    try:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        assert "run" not in vars(thread)
        thread.join(DEADLINE_S)

        async def main() -> Any:
            return lanes._lane.get()

        assert asyncio.run(main()) is None
    finally:
        patches.undo()


def test_uninstall_restores_by_identity() -> None:
    """After undo, every patched attribute is the object that was there before."""
    before = [vars(owner)[name] for owner, name in HOOKED]
    patches = Patches()
    lanes_of_work.install(patches, root_lane_of_active_run, carried)
    assert all(vars(owner)[name] is not old for (owner, name), old in zip(HOOKED, before, strict=True))
    patches.undo()
    assert all(vars(owner)[name] is old for (owner, name), old in zip(HOOKED, before, strict=True))


def test_labels_are_short_and_hide_where_a_function_was_defined() -> None:
    """A label is kind and name without `<locals>`, at most 80 characters; an object is named after its class."""

    class Tool:
        def __call__(self) -> None:
            return None

    assert label_of("x", test_labels_are_short_and_hide_where_a_function_was_defined).startswith("x:test_labels")
    assert label_of("x", Tool()) == "x:Tool"
    assert label_of("x", "".join) == "x:str.join"
    long = type("L" * 200, (), {})()
    assert len(label_of("x", long)) == lanes.LABEL_CHARACTERS_MAX


def test_named_children_are_the_same_lane_and_go_on_counting() -> None:
    """A framework's own id always gives the same lane, so that its calls are numbered consecutively."""
    root = Lane("main")
    lane = root.named_child("lg:1:agent")
    assert root.named_child("lg:1:agent") is lane
    assert [lane.next_index("tool:a"), lane.next_index("tool:b"), lane.next_index("tool:a")] == [0, 0, 1]


def test_n1_lane_inside_of_a_call_is_named_when_somebody_asks(run: Run) -> None:
    """The lane is below the one that the call was made in, has its own counters, and is dropped with the call."""

    class Call:
        boundary, index, lane = "tool:outer", 1, run.root_lane

    tokens = lanes.enter_crossing(Call)
    lane = current_lane(run.root_lane)
    assert [lane.next_index("tool:inner") for _ in range(2)] == [0, 1]
    assert [lane.path, lane.child("t:f").path] == ["main/tool:outer#2", "main/tool:outer#2/t:f#1"]
    assert (lane.owner, hasattr(lane, "unheard_of")) == (Call, False)
    lanes.leave_crossing(Call, tokens)
    assert current_lane(run.root_lane) is run.root_lane


def test_s28_a_lane_knows_when_those_above_it_were_made() -> None:
    """One number for each part of its path behind the first, also where a label has several parts."""
    clock = Clock()
    root = Lane("main", clock=clock)
    clock.now = 3
    task = root.child("t:f")
    clock.now = 5
    below = task.named_child("GET a/b")
    assert (root.births, task.births, below.births) == ((), (3,), (3, 5, 5))
    assert len(below.births) == below.path.count("/")
    assert [below.tell_births(clock), below.tell_births(clock), root.tell_births(clock)] == [(3, 5, 5), (), ()]
    late = Lane("unit")
    assert late.child("t:f").births == ()  # no call has been made: nobody knows the clock
    late.tell_births(clock)
    assert late.child("t:f").births == (5,)


def test_counting_is_safe_between_threads(run: Run) -> None:
    """A thousand children made by eight threads at once have a thousand different names."""
    root = Lane("main")
    barrier = threading.Barrier(8)

    def make() -> list[str]:
        barrier.wait(DEADLINE_S)
        return [root.child("t:f").path for _ in range(125)]

    with ThreadPoolExecutor(8) as executor:
        made = [path for future in [executor.submit(make) for _ in range(8)] for path in future.result(DEADLINE_S)]
    assert sorted(made, key=lambda p: int(p.rpartition("#")[2])) == [f"main/t:f#{n}" for n in range(1, 1001)]


def test_n1_call_that_is_left_elsewhere_ends_no_other() -> None:
    """A generator that the collector closes may leave its call in any Context, in the middle of another call."""

    class Call:
        owner, boundary, index, lane = None, "tool:x", 0, Lane("main")

    class Other(Call):
        boundary = "tool:y"

    left = contextvars.Context().run(lanes.enter_crossing, Call)
    root = Lane("main")
    with lanes.inside_call(Other):
        lanes.leave_crossing(Call, left)
        assert lanes.current_crossing(root) is Other
    tokens = lanes.enter_crossing(Other)
    lanes.leave_crossing(Call, left)
    assert current_lane(root).path == "main/tool:y#1"
    lanes.leave_crossing(Other, tokens)
    assert (lanes.current_crossing(root), current_lane(root)) == (None, root)


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="garbage is collected between instructions only, and not in the midst of one"
)
def test_n1_no_garbage_is_collected_while_a_lane_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ContextVar.set` crashes if an object collected during it sets another variable of the same Context."""
    seen: list[bool] = []

    class Watched:
        """A variable that records whether the collector was on."""

        def set(self, value: object) -> str:
            seen.append(gc.isenabled())
            return "token"

        def get(self, default: object) -> object:
            return default

        def reset(self, token: str) -> None:
            seen.append(gc.isenabled())

    monkeypatch.setattr(lanes, "_lane", Watched())
    for is_on in (True, False):
        (gc.enable if is_on else gc.disable)()
        try:
            with lanes.inside_lane(Lane("main")):
                assert gc.isenabled() is is_on
            assert gc.isenabled() is is_on
        finally:
            gc.enable()
    assert seen == [False] * 4


IN_EACH_COLLECTION = """
import gc
from spanreplay.runtime.lanes import Clock, Lane

class Client:
    freed = 0

    def __del__(self):
        Client.freed += 1
        for count in (lane.child, lane.next_index, lane.named_child):
            count("closing")
        leave()  # for the next collection

def leave():
    client = Client()
    client.itself = client

gc.set_threshold(1)  # nearly every container that is made starts a collection
for number in range(20):
    gc.disable()
    lane, Client.freed = Lane("main"), 0
    leave()
    gc.enable()
    lane.child("work"), lane.next_index("call"), lane.named_child("node")
    gc.disable()
    assert Client.freed > 0
    print(lane.next_index("closing") - Client.freed, lane.child("closing").number - Client.freed)
"""


def test_n1_finalizer_run_by_a_collection_counts_in_the_same_lane() -> None:
    """A client that starts a task when it is freed may be freed while its lane counts: no number is lost."""
    done = subprocess.run(
        [sys.executable, "-c", IN_EACH_COLLECTION], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (set(done.stdout.splitlines()), done.stderr) == ({"0 1"}, "")


def test_n1_tasks_of_many_lanes_hash_apart(run: Run) -> None:
    """The first child of each of 16,000 tasks has another hash, so that sets of tasks stay fast."""

    async def child() -> int:
        return hash(asyncio.current_task())

    async def parent() -> int:
        return await asyncio.create_task(child())

    async def main() -> set[int]:
        return set(await asyncio.gather(*(parent() for _ in range(MANY))))

    assert len(asyncio.run(main())) > MANY * 0.999
