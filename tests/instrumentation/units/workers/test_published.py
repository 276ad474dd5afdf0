"""What is compared of a published job: whatever the worker is told, not what is drawn for it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, signature
from redis import Redis
from rq import Callback, Queue, Repeat, Retry
from rq.job import Job

from spanreplay.units.workers import _celery, _rq

CELERY: Any = {
    "countdown": 5,
    "eta": "2026-01-01",
    "expires": 7,
    "queue": "slow",
    "routing_key": "slow",
    "exchange": "other",
    "priority": 3,
    "retries": 2,
    "shadow": "named",
    "link": [signature("shop.pay", args=(10,))],
    "link_error": [signature("shop.refund", args=(10,))],
    "chord": signature("shop.total"),
    "chain": [signature("shop.pay", args=(10,))],
    "ignore_result": True,
    "time_limit": 5,
    "soft_time_limit": 4,
    "headers": {"tenant": "acme"},
    "stamped_headers": ["tenant"],
}


def celery_call(**options: Any) -> Any:
    return _celery._describe_published(("shop.ask", (1,), {}), options).arguments


@pytest.mark.parametrize("name", CELERY)
def test_n14_every_option_of_a_celery_task_is_compared(name: str) -> None:
    """A task that follows, a limit, a header: a replay that publishes without it does not publish the same."""
    plain = celery_call(link=None, chord=None, headers=None, ignore_result=False)
    assert plain == celery_call()
    assert celery_call(**{name: CELERY[name]}) != plain


def test_n14_what_celery_draws_is_not_compared() -> None:
    """Ids of a task and of those that follow it, and the headers of a trace."""
    app = Celery("shop")
    told = [
        celery_call(
            task_id=each,
            root_id=each,
            reply_to=each,
            link=[signature("shop.pay", args=(10,), app=app).set(task_id=each)],
            headers={"traceparent": each, "tenant": "acme"},
        )
        for each in ("a", "b")
    ]
    assert told[0] == told[1]


QUEUE = Queue("jobs", connection=Redis(port=1))
RQ: Any = {
    "timeout": {"timeout": 5},
    "result_ttl": {"result_ttl": 5},
    "ttl": {"ttl": 5},
    "failure_ttl": {"failure_ttl": 5},
    "meta": {"meta": {"tenant": "acme"}},
    "description": {"description": "pay"},
    "retry": {"retry": Retry(max=3, interval=[1, 2, 3])},
    "repeat": {"repeat": Repeat(times=2, interval=5)},
    "on_success": {"on_success": Callback("shop.pay")},
    "on_failure": {"on_failure": Callback("shop.refund")},
    "on_stopped": {"on_stopped": Callback("shop.refund")},
    "depends_on": {"depends_on": Job.create("shop.before", connection=QUEUE.connection)},
}


def rq_call(given: Any = None, **named: Any) -> Any:
    job = QUEUE.create_job("shop.ask", args=(1,), **(given or {}))
    return _rq._describe_published(QUEUE.name, job, named)


@pytest.mark.parametrize("name", RQ)
def test_n14_every_option_of_an_rq_job_is_compared(name: str) -> None:
    """Retries, callbacks, what it waits for: a job without them is another one."""
    plain = rq_call()
    assert plain == rq_call()
    assert rq_call(RQ[name]) != plain


class Order:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def pay(self) -> None:
        """Do nothing."""


def test_n14_the_object_of_a_method_is_compared() -> None:
    """A method of another object is another job."""
    told = [_rq._describe_published("jobs", QUEUE.create_job(Order(each).pay), {}) for each in (10, 99)]
    assert [each["instance"].amount for each in told] == [10, 99]


@pytest.mark.parametrize("name", ["at_front", "unique", "datetime"])
def test_n14_how_an_rq_job_is_enqueued_is_compared(name: str) -> None:
    """At the front, once only, or later."""
    assert rq_call(**{name: True}) != rq_call()


@pytest.mark.parametrize("name", ["args", "kwargs", "meta"])
def test_n14_a_value_that_can_t_be_recorded_is_not_left_out(name: str) -> None:
    """The call shows it, and recording it makes the run incomplete: nothing is dropped in silence."""
    given: Any = {"args": (len,), "kwargs": {"key": len}, "meta": {"key": len}}
    job = QUEUE.create_job("shop.ask", **{name: given[name]})
    assert _rq._describe_published(QUEUE.name, job, {})[name] == given[name]
