"""Steps of a `trio.run`, counted as those of asyncio's loops are (see `steps`): a step is one of a task's.

While a run is recorded an instrument counts them. Trio runs its tasks in batches, of which nobody sees more than the
step that is made; in a replay, which has to bring something between two steps of a batch, each batch is one task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import trio

from spanreplay.runtime.lanes import is_of_agent
from spanreplay.runtime.order.steps import FINALIZING, StepQueue, Watched


class TrioQueue(StepQueue):
    """The tasks that can go on, in a replay; trio takes what it is about to run by going through it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        """How many of this turn's tasks are left."""
        self.entry_task: Any = None
        """The task that does what other threads ask for, which is no step."""

    def is_step(self, task: Any) -> bool:
        """Whether what a task is about to do is a step."""
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
        """Nothing: what trio has gone through is taken out already."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing but retries is left: there are none."""
        return False

    def next_turn(self) -> None:
        """A turn begins."""
        self.turn += 1
        self.left = len(self)

    def note_events(self, events: Iterable[Any]) -> None:
        """Nothing: what comes from outside wakes up tasks, each of whose steps is one."""


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
        """Learn about the turns and steps, from now on."""
        super().take_select()
        if self._counter is None and self._runner.runq is not self.queue:
            self._counter = _Counter(self.queue)
            self._runner.instruments.add_instrument(self._counter)
