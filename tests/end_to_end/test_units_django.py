"""Django's development server, as `python manage.py runserver` starts it: with its reloader."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, await_true, prepare, response_of, serve

MANAGE: Final = """
import os, sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""
SETTINGS: Final = """
SECRET_KEY, DEBUG, ROOT_URLCONF, ALLOWED_HOSTS, USE_TZ = "none", True, "urls", ["*"], True
INSTALLED_APPS = {apps}
ASGI_APPLICATION = "asgi.application"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}}}  # asked at the start
"""
ASGI: Final = """
from django.core.asgi import get_asgi_application
application = get_asgi_application()
"""
URLS: Final = """
import os, sys, threading, time, uuid

import openai
from django.http import HttpResponse, JsonResponse
from django.urls import path

def ask(request):
    asked = [{"role": "user", "content": request.GET["text"]}]
    with openai.OpenAI() as client:
        answer = client.chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content
    return JsonResponse({"answer": answer, "id": uuid.uuid4().hex, "at": time.time()})

def tell(request):
    frame, names = sys._current_frames()[threading.main_thread().ident], set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    knows_files = "tick" in names and "snapshot_files" not in names  # the reloader has looked, and sleeps
    return HttpResponse(str(os.getpid()), status=200 if knows_files else 503)

urlpatterns = [path("ask/", ask), path("pid/", tell)]
"""
APPS: Final = {"wsgi": [], "asgi": ["daphne"]}
RUNSERVER: Final = ("manage.py", "runserver")


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the project."""
    workplace = prepare(tmp_path, provider, "")
    for name, text in (("manage", MANAGE), ("asgi", ASGI), ("urls", URLS)):
        workplace.write(f"{name}.py", text)
    return workplace


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Processes that the reloader has started; those that still run at the end are killed."""
    processes: list[int] = []
    yield processes
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _find_another(server: Server, started: list[int]) -> bool:
    """Whether another process than the last one serves, and watches its files; it is added."""
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{server.url}/pid/", timeout=TIMEOUT_S)
        if answer.status_code == 200 and int(answer.text) not in started:
            started.append(int(answer.text))
            return True
    return False


def _ask(server: Server, text: str) -> str:
    answer = httpx.get(f"{server.url}/ask/?text={text}", timeout=TIMEOUT_S)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("name", APPS)
def test_p3_p4_requests_of_a_reloading_server_are_runs_and_replay_alone(
    name: str, provider: Provider, place: Workplace, started: list[int]
) -> None:
    """Also those of the process that serves after a file has changed: each is identical on its own code alone."""
    place.write("settings.py", SETTINGS.format(apps=APPS[name]))
    with serve(place, command=RUNSERVER, at="{port}") as server:
        await_true(lambda: _find_another(server, started))
        first = _ask(server, "one")
        place.write("urls.py", URLS.replace('"answer": answer', '"reply": answer'))
        await_true(lambda: _find_another(server, started))
        second = _ask(server, "two")
        server.await_ends()
        os.kill(started[-1], signal.SIGTERM)
        server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    units = [unit for unit in server.units() if any(call.kind == "llm" for call in unit.calls)]
    assert [response_of(unit)["body"]["text"] for unit in units] == [first, second]
    assert {unit.root.app for unit in units} == {"manage"}
    before, after = (unit.run_id for unit in units)
    replayed = place.replay(*RUNSERVER, "1", source=after)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    changed = place.replay(*RUNSERVER, "1", source=before, options=["--warm", "0"])
    assert changed.causes() == [("changed_call", "http:response")], changed.stderr
    place.write("urls.py", URLS)
    again = place.replay(*RUNSERVER, "1", source=before)
    assert again.verdict["verdict"] == "identical", again.stderr
