"""Random programs with outside effects, and the same programs with one effect changed, dropped or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Make = Callable[[str, int], str]
"""(unique name, value) → the step's lines."""


def _file(name: str, value: int) -> str:
    return f'pathlib.Path("{name}.txt").write_text("content {value}")'


def _folder(name: str, value: int) -> str:
    return f'os.mkdir("{name}", 0o7{value}0); os.rmdir("{name}")'


def _mode(name: str, value: int) -> str:
    return f'pathlib.Path("{name}.m").touch(); os.chmod("{name}.m", 0o6{value}0)'


def _times(name: str, value: int) -> str:
    return f'pathlib.Path("{name}.t").touch(); os.utime("{name}.t", (1, {value}))'


def _link(name: str, value: int) -> str:
    return f'os.symlink("target{value}", "{name}.l")'


def _program(name: str, value: int) -> str:
    return f'subprocess.run(["true", "{name}", "{value}"])'


def _given(name: str, value: int) -> str:
    return f'subprocess.run(["cat"], input=b"{name} pay {value}", stdout=subprocess.DEVNULL)'


def _variable(name: str, value: int) -> str:
    return f'subprocess.run(["true", "{name}"], env={{**os.environ, "AMOUNT": "{value}"}})'


def _statement(name: str, value: int) -> str:
    return f'db.execute("insert into t values (?, ?)", ("{name}", {value})); db.commit()'


def _transaction(name: str, value: int) -> str:
    how = ("db.commit()", "db.rollback()", "pass", "db.execute('savepoint s')")[value % 4]
    return f'db.execute("insert into t values (1, 1)"); {how}'


def _block(name: str, value: int) -> str:
    return f'{"with db" if value % 2 else "if True"}: db.execute("insert into t values (2, 2)")'


def _umask(name: str, value: int) -> str:
    return f"os.umask(0o0{value}0)"


def _removed(name: str, value: int) -> str:
    how = ("", f'subprocess.run(["cat", "{name}.r"], stdout=subprocess.DEVNULL); ')[value % 2]
    return f'pathlib.Path("{name}.r").write_text("pay {value}"); {how}os.remove("{name}.r")'


def _rewritten(name: str, value: int) -> str:
    return f'[pathlib.Path("{name}.w").write_text(t) for t in ("{value}", "last")]'


def _appended(name: str, value: int) -> str:
    return f'append("{name}.a", "{value}"); append("{name}.a", "more")'


def _edited(name: str, value: int) -> str:
    return f'pathlib.Path("{name}.e").write_text("0123456789"); os.truncate("{name}.e", {value})'


def _replaced(name: str, value: int) -> str:
    return f'pathlib.Path("{name}.x").write_text("{value}"); os.replace("{name}.x", "{name}.y")'


def _temporary(name: str, value: int) -> str:
    return f'f = tempfile.NamedTemporaryFile("w", suffix="{name}"); f.write("{value}"); f.close()'


def _descriptor(name: str, value: int) -> str:
    return f'f = os.open("{name}.d", os.O_CREAT | os.O_WRONLY, 0o60{value}); os.write(f, b"{value}"); os.close(f)'


def _below(name: str, value: int) -> str:
    return f'f = os.open(".", os.O_RDONLY); os.mkdir("{name}.{value}", dir_fd=f); os.close(f)'


def _attribute(name: str, value: int) -> str:
    return f'open("{name}.u", "w").close(); os.setxattr("{name}.u", "user.a", b"{value}")'


def _started(name: str, value: int) -> str:
    option = ("umask=0", "start_new_session=True", "cwd='/'", "executable='/bin/true'")[value % 4]
    return f'subprocess.Popen(["true", "{name}"], {option}).wait()'


def _piped(name: str, value: int) -> str:
    return f'p = subprocess.Popen(["cat"], stdin=-1, stdout=-1); p.communicate(b"{name}{value}")'


def _awaited(name: str, value: int) -> str:
    return f'asyncio.run(tell(b"{name}{value}"))'


def _script(name: str, value: int) -> str:
    return f"db.executescript(\"insert into t values ({value}, '{name}'); delete from t where b = {value}\")"


def _many(name: str, value: int) -> str:
    return f'db.executemany("insert into t values (?, ?)", [("{name}", n) for n in range({value})])'


def _told(name: str, value: int) -> str:
    return f'db.create_function("{name}", {value}, len)'


def _sent(name: str, value: int) -> str:
    headers, method = f'{{"x-tenant": "{name}{value % 2}"}}', ("GET", "PUT")[value // 2 % 2]
    return f'send("http://127.0.0.1:1/{name}?q={value // 4}", {headers}, "{method}")'


def _signalled(name: str, value: int) -> str:
    return f"os.kill(os.getppid(), 0) if {value % 2} else os.killpg(os.getpgid(os.getppid()), 0)"


STEPS: tuple[Make, ...] = (
    _file, _folder, _mode, _times, _link, _program, _given, _variable, _statement, _transaction, _block, _umask,
    _removed, _rewritten, _appended, _edited, _replaced, _temporary, _descriptor, _below, _attribute, _started, _piped,
    _awaited, _script, _many, _told, _sent, _signalled,
)  # fmt: skip
_IN_ORDER = frozenset(
    {_program, _given, _variable, _statement, _block, _started, _piped, _awaited, _script, _many, _sent, _signalled}
)
"""Effects whose order is one, too."""
_HEAD = """
import asyncio, os, pathlib, sqlite3, subprocess, tempfile, urllib.error, urllib.request

async def tell(what):
    program = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    await program.communicate(what)

def append(path, text):
    with open(path, "a") as file:
        file.write(text)

def send(url, headers, method):
    try:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method))
    except urllib.error.URLError:
        pass

def agent():
    db = sqlite3.connect("x.db")
    db.execute("create table if not exists t(a, b)")
"""
_VALUES = 8


@dataclass(frozen=True)
class Step:
    """One effect: its kind, name and value."""

    make: Make
    name: str
    value: int


def random_steps(rng: random.Random, most: int = 6) -> list[Step]:
    """Return effects in a random order."""
    return [Step(rng.choice(STEPS), f"n{at}", rng.randrange(_VALUES)) for at in range(rng.randint(1, most))]


def write(steps: list[Step]) -> str:
    """Return the source of an agent that has these effects."""
    return _HEAD + "".join(f"    {step.make(step.name, step.value)}\n" for step in steps) + "    db.close()\n"


def mutate(rng: random.Random, steps: list[Step]) -> list[Step]:
    """Return the steps with one effect changed, dropped, added or exchanged with another; the source differs."""
    while True:
        at = rng.randrange(len(steps))
        step = steps[at]
        others = [
            [Step(step.make, step.name, rng.randrange(_VALUES))],
            [Step(rng.choice(STEPS), step.name, step.value)],
            [],
            [step, Step(rng.choice(STEPS), f"{step.name}more", rng.randrange(_VALUES))],
        ]
        changed = [*steps[:at], *rng.choice(others), *steps[at + 1 :]]
        ordered = [n for n, each in enumerate(steps) if each.make in _IN_ORDER]
        if len(ordered) > 1 and rng.randrange(len(others) + 1) == 0:
            one, other = rng.sample(ordered, 2)
            changed = list(steps)
            changed[one], changed[other] = steps[other], steps[one]
        if write(changed) != write(steps):
            return changed
