"""The story of the $190,000 order, told with the commands that a user would type; every step is checked.

In the first half the agent is a script (`incident.py`), in the second a service with many customers (`crowd.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from spanreplay_service.demo import crowd, incident
from spanreplay_service.demo.crowd import ManyOrders
from spanreplay_service.demo.incident import BUNDLE, SCRIPT, Incident, OneOrder
from spanreplay_service.demo.narration import Narrator
from spanreplay_service.demo.stage import DemoFailed, Service, clean_environ
from spanreplay_service.demo.telling import AGENT, make_ledger

MARKER: Final = ".spanreplay-demo"
PACKAGES: Final = ("langgraph", "langchain_openai", "fastapi", "uvicorn", "httpx")


class Story:
    """One run of the story; all started services are stopped at its end, whatever happens."""

    def __init__(self, directory: Path, console: Console, *, is_kept: bool, has_phoenix: bool) -> None:
        self.directory = directory
        self.voice = Narrator(console, incident.STEPS + crowd.STEPS)
        self.is_kept = is_kept
        self.has_phoenix = has_phoenix
        self.services: list[Service] = []
        self.first = OneOrder(directory, self.voice, clean_environ(), self.services)

    def tell(self) -> None:
        """Tell the whole story. Raises: DemoFailed."""
        order, link = self.tell_first_half()
        second = ManyOrders(self.directory / "service", self.voice, dict(self.first.environ), self.services)
        run_id = self.tell_second_half(second)
        self.tell_next(order, link, second, run_id)

    def tell_first_half(self) -> tuple[Incident, str]:
        """Tell the half where the agent is a script; return the order that went wrong and its page in Phoenix."""
        started, first = time.monotonic(), self.first
        first.start_services(has_phoenix=self.has_phoenix)
        order = first.record_until_incident()
        run_id = first.find_run(order)
        link = first.show_run(run_id)
        first.replay_offline(run_id, order)
        first.replay_with_tools(run_id, order)
        first.fix_agent()
        first.prove_fix(run_id, order)
        first.run_spanreplay("export", run_id, "-o", BUNDLE)
        first.tell_what_happened(order, time.monotonic() - started)
        return order, link

    def tell_second_half(self, second: ManyOrders) -> str:
        """Tell the half where the agent is a service; return the run id of the request that went wrong."""
        started = time.monotonic()
        second.prepare()
        order = second.record_crowd()
        run_id = second.find_run(order)
        second.replay_alone(run_id)
        second.prove_fix(run_id)
        second.tell_what_happened(order, time.monotonic() - started)
        return run_id

    def tell_next(self, order: Incident, link: str, second: ManyOrders, run_id: str) -> None:
        """Suggest next commands."""
        self.voice.start_part("Next")
        first = self.first
        programs = Path(sys.executable).parent
        if shutil.which("spanreplay") != str(programs / "spanreplay") and (programs / "activate").exists():
            self.voice.say(f"in your shell:  . {shlex.quote(str(programs / 'activate'))}")
        if self.is_kept:
            exports = " ".join(f"{name}={value}" for name, value in first.up.environ.items())
            self.voice.say(f"look around:    cd {self.directory}; export {exports}; spanreplay ls")
            self.voice.say(f"in Phoenix:     {link or 'not started'}")
            self.voice.say(f"still running:  spanreplay up; end it: kill {first.up.service.pid}")
        else:
            self.voice.say("look around:    python -m spanreplay_service.demo --keep leaves everything running")
        agent = first.make_agent_command(order.user)
        self.voice.say(f"without server: {_make_replay(first, BUNDLE, agent)}")
        self.voice.say(f"   one request: {_make_replay(second, f'{run_id}.replay', crowd.COMMAND)}")
        self.voice.say("your own agent: spanreplay up, then opentelemetry-instrument python agent.py")
        self.voice.say("   one that serves: opentelemetry-instrument python -m uvicorn app:app (docs/production.md)")

    def close(self, *, has_failed: bool) -> None:
        """Stop the started services; after a success with --keep, `spanreplay up` keeps running."""
        for service in reversed(self.services):
            if self.is_kept and not has_failed and service is self.first.up.service:
                service.let_go()
            else:
                service.stop()


def _make_replay(half: OneOrder | ManyOrders, bundle: str, command: Sequence[str]) -> str:
    return f"cd {half.directory}; {shlex.join(['spanreplay', 'replay', bundle, '--', *command])}"


def prepare_folder(directory: Path) -> None:
    """Create an empty working folder with the agent and its ledger.

    Raises: DemoFailed if the folder is not empty and was not made by an earlier demo.
    """
    if directory.exists():
        if any(directory.iterdir()) and not (directory / MARKER).exists():
            raise DemoFailed(f"{directory} is not empty and not a demo's; name another with --dir")
        shutil.rmtree(directory)
    (directory / "agent").mkdir(parents=True)
    (directory / MARKER).write_text("made by python -m spanreplay_service.demo; may be deleted\n")
    shutil.copyfile(AGENT / "trading_agent.py", directory / SCRIPT)
    make_ledger(directory / "ledger.sqlite")


def _check_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        wanted = " ".join(name.replace("_", "-") for name in missing)
        raise DemoFailed(f"not installed: {', '.join(missing)}; run make setup, or pip install {wanted}")


def main(argv: Sequence[str] | None = None) -> None:
    """Tell the story; exit status 1 if a step fails."""
    parser = argparse.ArgumentParser(
        prog="python -m spanreplay_service.demo",
        description="Record the $190,000 incident, replay it, prove the fix; then one bad request of a service",
    )
    parser.add_argument("--keep", action="store_true", help="leave `spanreplay up` running at the end")
    parser.add_argument("--dir", type=Path, default=Path(".demo"), help="working folder, emptied first (.demo)")
    parser.add_argument("--no-phoenix", action="store_true", help="start without Phoenix")
    args = parser.parse_args(argv)
    console = Console(soft_wrap=True)
    story = Story(args.dir.absolute(), console, is_kept=args.keep, has_phoenix=not args.no_phoenix)
    has_failed = True
    try:
        _check_packages()
        prepare_folder(story.directory)
        story.tell()
        has_failed = False
    except DemoFailed as exc:
        console.print(f"\n     ✗ step {story.voice.step} failed", style="bold red", highlight=False)
        console.print(str(exc), highlight=False, markup=False)
        console.print(f"     logs: {story.directory}", highlight=False, markup=False)
    except KeyboardInterrupt:
        console.print("\n     stopped", style="bold red")
    finally:
        story.close(has_failed=has_failed)
    sys.exit(1 if has_failed else 0)
