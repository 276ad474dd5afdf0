"""The table of units: one row per server or worker in which each request or job is its own run.

Like a seam, a row's module has `install(module, patches)`; it is imported when its library is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from typing import Final

from spanreplay.model.distributions import find_start
from spanreplay.seams.row import Seam

__all__ = ["COMMANDS", "UNITS", "serves", "starts_server"]

_HTTP: Final = "`http`"


def _http(name: str, distribution: str, triggers: tuple[str, ...], code: str, records: str, **fields: str) -> Seam:
    """Return the row of an HTTP server."""
    kind, effect = _HTTP, "`read` for what comes in, `write` for the response"
    return Seam(name, distribution, triggers, code, records, kind=kind, effect=effect, lanes="`unit`", **fields)


_OF_FASTSTREAM: Final = ("rabbit", "kafka", "nats")
"""Brokers of FastStream whose messages are recorded, besides Redis."""
UNITS: Final[tuple[Seam, ...]] = (
    _http(
        "uvicorn",
        "uvicorn",
        ("uvicorn.config", "uvicorn.server", "uvicorn.supervisors.multiprocess", "uvicorn.supervisors.basereload"),
        "spanreplay.units.servers._uvicorn",
        "each HTTP request and websocket session as a run of its own: what comes in, what goes out, and all in between",
        versions=">=0.20",
    ),
    _http(
        "gunicorn",
        "gunicorn",
        ("gunicorn.workers.base", "gunicorn.arbiter"),
        "spanreplay.units.servers._gunicorn",
        "each HTTP request of its WSGI workers as a run of its own",
        versions=">=20.1",
    ),
    _http(
        "waitress",
        "waitress",
        ("waitress.server",),
        "spanreplay.units.servers._waitress",
        "each HTTP request as a run of its own",
        versions=">=2.1",
    ),
    _http(
        "werkzeug",
        "werkzeug",
        ("werkzeug.serving", "werkzeug._reloader"),
        "spanreplay.units.servers._http_server",
        "each HTTP request of its server (`flask run`, `app.run()`) as a run of its own",
        versions=">=2.2",
        omits="a server in another than the main thread: it belongs to the run of the process",
    ),
    _http(
        "wsgiref",
        "python",
        ("wsgiref.simple_server",),
        "spanreplay.units.servers._http_server",
        "each HTTP request of its server (Django's `runserver`) as a run of its own",
        omits="a server in another than the main thread: it belongs to the run of the process",
    ),
    _http(
        "django",
        "django",
        ("django.utils.autoreload",),
        "spanreplay.units.servers._http_server",
        "each HTTP request of `runserver` with its reloader as a run of its own",
        versions=">=4",
    ),
    _http(
        "cheroot",
        "cheroot",
        ("cheroot.server",),
        "spanreplay.units.servers._cheroot",
        "each HTTP request of its WSGI server as a run of its own",
        versions=">=10",
        omits="a server in another than the main thread: it belongs to the run of the process",
    ),
    _http(
        "CherryPy",
        "cherrypy",
        ("cherrypy.process.servers", "cherrypy.process.wspbus"),
        "spanreplay.units.servers._cheroot",
        "each HTTP request of its server, which is cheroot, as a run of its own",
        versions=">=18.9",
    ),
    _http(
        "hypercorn",
        "hypercorn",
        ("hypercorn.config", "hypercorn.run", "hypercorn.asyncio.run"),
        "spanreplay.units.servers._hypercorn",
        "each HTTP request (1.1, 2) and websocket session as a run of its own: what comes in, what goes out",
        versions=">=0.17",
        omits="the worker on trio, HTTP/3",
    ),
    _http(
        "daphne",
        "daphne",
        ("daphne.server", "daphne.cli"),
        "spanreplay.units.servers._daphne",
        "each HTTP request (1.1, 2) and websocket session as a run of its own: what comes in, what goes out",
        versions=">=4",
    ),
    _http(
        "granian",
        "granian",
        ("granian.server.common", "granian.asgi", "granian.wsgi"),
        "spanreplay.units.servers._granian",
        "each HTTP request (1.1, 2) and websocket session over ASGI, and each request over WSGI, as a run of its own",
        versions=">=2.5",
        omits="applications of RSGI",
    ),
    _http(
        "aiohttp.web",
        "aiohttp",
        ("aiohttp.web_protocol", "aiohttp.web_runner", "aiohttp.web_fileresponse", "aiohttp.web_ws"),
        "spanreplay.units.servers._aiohttp",
        "each HTTP request and websocket session of its own server as a run of its own: `run_app`, runners, "
        "`python -m aiohttp.web`, gunicorn's worker of it",
        versions=">=3.11",
        omits="a `web.Server` that a program gives to its loop by itself; a server in another than the main thread, or "
        "one that its own process asks: they belong to the run of the process",
    ),
    _http(
        "Tornado",
        "tornado",
        (
            "tornado.httpserver",
            "tornado.tcpserver",
            "tornado.web",
            "tornado.websocket",
            "tornado.process",
            "tornado.netutil",
        ),
        "spanreplay.units.servers._tornado",
        "each HTTP request and websocket session of a `tornado.web.Application` as a run of its own, also in several "
        "processes",
        versions=">=6.2",
        omits="a server in another than the main thread, or one that its own process asks: they belong to the run of "
        "the process",
    ),
    _http(
        "Sanic",
        "sanic",
        (
            "sanic.server.protocols.http_protocol",
            "sanic.server.protocols.base_protocol",
            "sanic.server.protocols.websocket_protocol",
            "sanic.handlers.error",
            "sanic.mixins.startup",
            "sanic.worker.multiplexer",
            "sanic.worker.serve",
        ),
        "spanreplay.units.servers._sanic",
        "each HTTP request and websocket session of its own server, with workers, as a run of its own",
        versions=">=23.3",
        omits="HTTP/3; a server in somebody's loop (`create_server`), a second application of the same process",
    ),
    Seam(
        "Celery",
        "celery",
        (
            "celery.app.trace",
            "celery.app.base",
            "celery.app.task",
            "celery.backends.base",
            "celery.backends.rpc",
            "celery.worker.worker",
        ),
        "spanreplay.units.workers._celery",
        "each execution of a task as a run of its own: arguments, result, exception or retry, published tasks",
        kind="`compute`; `tool` for a published task",
        effect="`read` for the arguments, `write` for the result and for a published task",
        lanes="`unit`",
        versions=">=5.4",
        omits="calls of `worker_process_init` handlers in a pool's process; gevent, eventlet",
    ),
    Seam(
        "Celery, results",
        "celery",
        (
            "celery.result",
            "celery.app.control",
            "celery.backends.asynchronous",
            "celery.backends.base",
            "celery.backends.database",
            "celery.backends.rpc",
        ),
        "spanreplay.units.workers._celery_results",
        "results of tasks that a program waits for or reads, and commands to workers, as calls",
        kind="`tool`",
        effect="`read` for a result, `write` for a command",
        versions=">=5.4",
        omits="callbacks of `join`; `then`",
    ),
    Seam(
        "RQ",
        "rq",
        ("rq.job", "rq.queue", "rq.worker.base", "rq.cli.workers"),
        "spanreplay.units.workers._rq",
        "each job that a worker performs as a run of its own: arguments, result or exception, published jobs",
        kind="`compute`; `tool` for a published job",
        effect="`read` for the arguments, `write` for the result and for a published job",
        lanes="`unit`",
        versions=">=3",
        omits="callbacks of jobs; `enqueue_many`; other reads of Redis; the processes of `SpawnWorker`",
    ),
    Seam(
        "arq",
        "arq",
        ("arq.worker", "arq.connections"),
        "spanreplay.units.workers._arq",
        "each job that a worker performs as a run of its own: arguments, result or exception, published jobs",
        kind="`compute`; `tool` for a published job",
        effect="`read` for the arguments, `write` for the result and for a published job",
        lanes="`unit`",
        versions=">=0.25",
        omits="calls of `on_job_start` and `on_job_end`; other reads of Redis; a job that was cancelled ends by itself",
    ),
    Seam(
        "Dramatiq",
        "dramatiq",
        (
            "dramatiq.broker",
            "dramatiq.worker",
            "dramatiq.cli",
            "dramatiq.results.backend",
            "dramatiq.middleware.time_limit",
        ),
        "spanreplay.units.workers._dramatiq",
        "each message that a worker processes as a run of its own: arguments, result, exception or retry, published "
        "messages",
        kind="`compute`; `tool` for a published message",
        effect="`read` for the arguments, `write` for the result and for a published message",
        lanes="`unit`",
        versions=">=1.17",
        omits="calls of middleware after the worker's start and of `on_failure` callbacks; reads of result backends",
    ),
    Seam(
        "taskiq",
        "taskiq",
        ("taskiq.abc.broker", "taskiq.kicker", "taskiq.receiver.receiver", "taskiq.cli.worker.process_manager"),
        "spanreplay.units.workers._taskiq",
        "each task that a worker receives as a run of its own: arguments, result or exception, published tasks",
        kind="`compute`; `tool` for a published task",
        effect="`read` for the arguments, `write` for the result and for a published task",
        lanes="`unit`",
        versions=">=0.11.10",
        omits="reads of result backends; `--use-process-pool`; a task that a timeout cancelled ends by itself",
    ),
    Seam(
        "FastStream",
        "faststream",
        (
            "faststream._internal.application",
            "faststream._internal.cli.supervisors.basereload",
            "faststream._internal.endpoint.subscriber.usecase",
            "faststream.middlewares.acknowledgement.middleware",
            "faststream.redis.publisher.producer",
            *(f"faststream.{each}.{part}" for each in _OF_FASTSTREAM for part in ("publisher.producer", "message")),
        ),
        "spanreplay.units.workers._faststream",
        "each message that a subscriber on Redis, RabbitMQ, Kafka (aiokafka) or NATS processes as a run of its own: "
        "body, headers, result or exception, published messages",
        kind="`compute`; `tool` for a published message",
        effect="`read` for the message, `write` for the result and for a published message",
        lanes="`unit`",
        versions=">=0.7",
        omits="confluent-kafka and MQTT, which make the run of the process incomplete; buckets of NATS; brokers that "
        "no `FastStream` application runs; `get_one` and iterators",
    ),
    Seam(
        "huey",
        "huey",
        ("huey.api", "huey.consumer"),
        "spanreplay.units.workers._huey",
        "each execution of a task as a run of its own: arguments, result, exception or retry, published tasks",
        kind="`compute`; `tool` for a published task",
        effect="`read` for the arguments, `write` for the result and for a published task",
        lanes="`unit`",
        versions=">=3",
        omits="calls of startup hooks; chords; locks, results and other reads of its storage; the time of a published "
        "task; greenlets",
    ),
    Seam(
        "procrastinate",
        "procrastinate",
        ("procrastinate.worker", "procrastinate.manager"),
        "spanreplay.units.workers._procrastinate",
        "each job that a worker processes as a run of its own: arguments, result, exception or retry, published jobs",
        kind="`compute`; `tool` for a published job",
        effect="`read` for the arguments, `write` for the result and for a published job",
        lanes="`unit`",
        versions=">=3.3",
        omits="other queries about jobs; a job that was aborted ends by itself",
    ),
    Seam(
        "APScheduler",
        "apscheduler",
        ("apscheduler.executors.base", "apscheduler.executors.pool", "apscheduler.schedulers.base"),
        "spanreplay.units.workers._apscheduler",
        "each execution of a job as a run of its own, in every scheduler: arguments, result or exception, added jobs",
        kind="`compute`; `tool` for an added job",
        effect="`read` for the arguments, `write` for the result and for an added job",
        lanes="`unit`",
        versions=">=3.10,<4",
        omits="listeners; what a job changes in other jobs",
    ),
    Seam(
        "Slack Bolt",
        "slack_bolt",
        (
            "slack_bolt.app.app",
            "slack_bolt.listener.thread_runner",
            "slack_bolt.listener.custom_listener",
            "slack_bolt.lazy_listener.thread_runner",
            "slack_bolt.adapter.socket_mode.base_handler",
            "slack_bolt.app.async_app",
            "slack_bolt.listener.asyncio_runner",
            "slack_bolt.listener.async_listener",
            "slack_bolt.lazy_listener.asyncio_runner",
            "slack_bolt.adapter.socket_mode.async_base_handler",
        ),
        "spanreplay.units.workers._slack_bolt",
        "each event in socket mode as a run of its own, until its listeners and lazy listeners are done; over HTTP its "
        "request, until then",
        kind="`compute`",
        effect="`read` for the event, `write` for the response",
        lanes="`unit`",
        versions=">=1.18",
        omits="exceptions of lazy listeners",
    ),
    Seam(
        "AWS Lambda",
        "awslambdaric",
        ("awslambdaric.bootstrap", "awslambdaric.lambda_runtime_client"),
        "spanreplay.units.workers._lambda",
        "each invocation of a handler as a run of its own: the event and its context, the result or the error",
        kind="`compute`",
        effect="`read` for the event, `write` for the result",
        lanes="`unit`",
        versions=">=3",
        omits="the stack of an error; runtimes of several processes (`AWS_LAMBDA_MAX_CONCURRENCY`); SnapStart",
    ),
    Seam(
        "Amazon SQS",
        "botocore",
        ("botocore.client",),
        "spanreplay.units.workers._sqs",
        "with `SPANREPLAY_UNITS=messages`, what a loop of the program's own receives from a queue as a run of its own",
        kind="`compute`, `tool`",
        effect="`read` for the messages",
        lanes="`unit`",
        versions=">=1.31",
        omits="without that setting receiving is an HTTP request like others",
    ),
    Seam(
        "Amazon SQS, asyncio",
        "aiobotocore",
        ("aiobotocore.client",),
        "spanreplay.units.workers._sqs",
        "the same with aiobotocore and aioboto3",
        kind="`compute`, `tool`",
        effect="`read` for the messages",
        lanes="`unit`",
        versions=">=2.5",
        omits="without that setting receiving is an HTTP request like others",
    ),
    Seam(
        "MCP server",
        "mcp",
        ("mcp.server.stdio", "mcp.server.runner"),
        "spanreplay.units.workers._mcp",
        "each tool call, prompt and resource served on standard input and output as a run of its own",
        kind="`compute`",
        effect="`read` for the request, `write` for the result",
        lanes="`unit`",
        versions=">=2",
        omits="progress and log notifications; other transports: a request over HTTP is a unit of its server",
    ),
    Seam(
        "Jupyter",
        "ipykernel",
        (
            "ipykernel.ipkernel",
            "ipykernel.kernelapp",
            "ipykernel.kernelbase",
            "ipykernel.iostream",
            "ipykernel.zmqshell",
        ),
        "spanreplay.units.workers._ipykernel",
        "each cell that a notebook executes as a run of its own: its source, what it prints and displays, its error",
        kind="`compute`",
        effect="`read` for the source, `write` for what is displayed",
        lanes="`unit`",
        versions=">=6.20",
        omits="standard error; what programs write to the standard streams by themselves; widgets' messages",
    ),
    Seam(
        "IPython",
        "ipython",
        (
            "IPython.core.interactiveshell",
            "IPython.core.displayhook",
            "IPython.core.displaypub",
            "IPython.terminal.interactiveshell",
            "IPython.utils._process_posix",
            "IPython.utils.timing",
        ),
        "spanreplay.units.workers._ipython",
        "each cell that is given to its shell as a run of its own, in a terminal and embedded in a program",
        kind="`compute`",
        effect="`read` for the source, `write` for what is displayed",
        lanes="`unit`",
        versions=">=8",
        omits="standard error",
    ),
    Seam(
        "LangGraph server",
        "langgraph-api",
        ("langgraph_api.worker", "langgraph_api.route", "langgraph_api.api.runs"),
        "spanreplay.units.workers._langgraph",
        "each run of a graph that no request waits for as a run of its own: what its queue gives, how it ended; other "
        "runs as a part of their request",
        kind="`compute`",
        effect="`read` for what the queue gives, `write` for the result",
        lanes="`unit`; `graph run` in the request that waits for it",
        versions=">=0.16",
        omits="servers on Postgres and Redis; what is streamed of a run that no request waits for; webhooks",
    ),
    Seam(
        "Gradio",
        "gradio",
        ("gradio.queueing",),
        "spanreplay.units.workers._gradio",
        "each event that an app's queue processes as a run of its own: what the browser sent, each message it got",
        kind="`compute`",
        effect="`read` for the event, `write` for its messages",
        lanes="`unit`",
        versions=">=5",
        omits="streamed inputs (microphone, camera); state of a session (`gr.State`) beyond `--warm`; how long events "
        "took; a request that streams events' results is incomplete",
    ),
)


def serves() -> bool:
    """Whether an HTTP server is loaded in this process."""
    return any(row.kind == _HTTP and row.triggers[0] in sys.modules for row in UNITS)


COMMANDS: Final = frozenset(
    {"chainlit", "fastapi", "flask", "gradio", "huey_consumer", "langgraph", "langgraph_cli", "streamlit"}
    | {"ipykernel_launcher", "ipython", "ipython3", "jupyter", "nbclient", "nbconvert", "papermill", "waitress-serve"}
)
"""Programs that start one of these servers under another name."""
_VARIABLE: Final = "AWS_LAMBDA_RUNTIME_API"
"""Set in every AWS Lambda process; the runtimes start a script of their own."""


def starts_server(argv: list[str] | None = None) -> bool:
    """Whether a command line or the environment (AWS Lambda) starts one of these servers or workers."""
    if _VARIABLE in os.environ:
        return True
    name = PurePath(find_start(argv)[1]).name.partition(".")[0]
    return (
        name in COMMANDS
        or name.startswith("jupyter-")
        or any(name == row.triggers[0].partition(".")[0] for row in UNITS)
    )
