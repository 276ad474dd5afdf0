"""Opens recordings with every command that reads one; `python -m support.opened_files FILE…` prints what they wrote.

An audit hook sees every way in which Python changes a file. Only changes outside of the data directory are printed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from spanreplay.cli.app import app

WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES: Final = frozenset(
    {
        *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown"),
        *("os.utime", "os.truncate", "os.setxattr", "os.removexattr", "sqlite3.connect", "tempfile.mkdtemp"),
        *(
            "tempfile.mkstemp",
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "os.fork",
            "socket.connect",
        ),
    }
)
EXPORTED: Final = re.compile(r"(\.[0-9a-f]{32}\.replay\.[^/]*|[0-9a-f]{32}\.replay[^/]*)\Z")
"""Files that `export` writes into the working directory if it is given no name; they are named after the run."""
COMMANDS: Final = (
    *(("show", "FILE"), ("show", "FILE", "--json"), ("show", "FILE", "--call", "1"), ("import", "FILE")),
    *(("ls",), ("ls", "--json"), ("show", "latest"), ("export", "latest"), ("drift", "--json")),
)


class Watch:
    """Collects changes outside of the allowed folders."""

    def __init__(self, here: Path) -> None:
        self._here = here.resolve()
        self.outside: set[str] = set()
        self.inside = 0
        self.is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on or (event != "open" and event not in CHANGES):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITES):
            return
        is_pair = event in ("os.rename", "os.link")
        for path in args[: 2 if is_pair else 1]:
            self._note(event, path if event != "os.symlink" else args[1])

    def _note(self, event: str, path: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            if event != "open":
                self.outside.add(f"{event} {path!r}")
            return
        self.is_on = False
        named = Path(os.fsdecode(path)).absolute()
        whole = named.parent.resolve() / named.name
        self.is_on = True
        data_dir = self._here / ".spanreplay"
        is_export = whole.parent == self._here and EXPORTED.match(whole.name)
        if data_dir in (whole, *whole.parents) or is_export or whole == Path(os.devnull):
            self.inside += 1
        else:
            self.outside.add(f"{event} {whole}")


def main() -> None:
    """Open each file with each command; print what was written outside, and the number of commands."""
    here = Path.cwd()
    runner = CliRunner()

    def run(file: str) -> int:
        done = 0
        for words in COMMANDS:
            result = runner.invoke(app, [file if each == "FILE" else each for each in words], prog_name="spanreplay")
            done += result.exit_code == 0
            assert result.exception is None or isinstance(result.exception, SystemExit), (file, words, result.exception)
        return done

    run(sys.argv[1])  # loads what is imported lazily
    watch = Watch(here)
    watch.is_on = True
    done = {Path(file).name: run(file) for file in sys.argv[2:]}
    watch.is_on = False
    print(json.dumps({"done": done, "inside": watch.inside, "outside": sorted(watch.outside)}))


if __name__ == "__main__":
    main()
