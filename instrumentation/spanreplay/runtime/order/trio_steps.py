"""Steps of a `trio.run`, counted like those of asyncio's loops (see `steps`): a step is one step of a task.

While a run is recorded an instrument counts them. Trio runs its tasks in batches and shows only the current step; a
replay, which has to insert events between two steps of a batch, makes each batch a single task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import trio

from spanreplay.runtime.lanes import is_of_agent
from spanreplay.runtime.order.steps import FINALIZING, StepQueue, Watched


class TrioQueue(StepQueue):
    """The ready tasks, in a replay; trio takes the next batch by iterating over it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        """How many tasks of this iteration are left."""
        self.entry_task: Any = None
        """The task that serves requests from other threads, which is not a step."""

    def is_step(self, task: Any) -> bool:
        """Whether the next step of a task counts as a step."""
        return task is not self.entry_task and is_of_agent(task.context) and not task.context.get(FINALIZING)

    def popleft(self) -> Any:
        """The next task."""
        due = None if self.director is None else self.director.take_due()
        if due is not None:
            self.taken += 1
            return due
        task = deque.popleft(self)
        self.take(task, task.context)
        return task

    def __iter__(self) -> Iterator[Any]:
        if self:
            self.left -= 1
            yield self.popleft()

    def clear(self) -> None:
        """No-op: the tasks that trio has iterated over are already taken out."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing but retries is left; False, because there are no retries."""
        return False

    def next_turn(self) -> None:
        """Begin an iteration."""
        self.turn += 1
        self.left = len(self)

    def note_events(self, events: Iterable[Any]) -> None:
        """No-op: events from outside wake up tasks, and each step of a task counts."""


class _Counter(trio.abc.Instrument):
    def __init__(self, queue: TrioQueue) -> None:
        self._queue = queue

    def before_task_step(self, task: Any) -> None:
        """A task is about to go on."""
        self._queue.take(task, task.context)


class TrioSteps(Watched):
    """One `trio.run` whose steps are counted; used by the thread that runs it."""

    queue: TrioQueue

    def __init__(self, runner: Any, selector: Any) -> None:
        self._runner = runner
        self._selector = selector
        self._old = deque()
        self._real_select = None
        self._counter: _Counter | None = None
        self.queue = TrioQueue()

    def take_select(self) -> None:
        """Observe the iterations and steps from now on."""
        super().take_select()
        if self._counter is None and self._runner.runq is not self.queue:
            self._counter = _Counter(self.queue)
            self._runner.instruments.add_instrument(self._counter)
