"""The standard library's own tests of its clients pass in a recorded program, whose connections are calls."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

RUNNER: Final = """
import sys, unittest
from spanreplay.seams.machine.outside import watch
from spanreplay.seams.machine.sockets import streams

watch.connects_to_own = lambda *_: False  # the tests' servers are in this process: here they count as any others
sent = []
real = streams.send

def send(*args, **kwargs):
    sent.append(1)
    return real(*args, **kwargs)

streams.send = send
done = unittest.main(module=None, argv=["tests", *sys.argv[1:]], exit=False)
print("sent", len(sent))
sys.exit(not done.result.wasSuccessful())
"""
MODULES: Final = ("test_smtplib", "test_ftplib", "test_asyncio.test_streams")


@pytest.mark.parametrize("name", MODULES)
def test_u1_the_standard_librarys_tests_of_its_clients_pass_recorded(name: str, workplace: Workplace) -> None:
    """Whatever they ask of sockets, TLS and transports is answered as without a recorder."""
    if find_spec("test.support") is None or find_spec(f"test.{name.partition('.')[0]}") is None:
        pytest.skip("this Python comes without its own tests")
    folder = Path(str(find_spec("test").origin)).parent  # type: ignore[union-attr]  # it exists
    package, _, module = name.rpartition(".")
    source = (folder / package / f"{module}.py").read_text(encoding="utf-8")
    workplace.write("library_tests.py", source.replace("__file__", repr(str(folder / package / f"{module}.py"))))
    runner = workplace.write("runner.py", RUNNER)
    plain = subprocess.run(
        [sys.executable, "-m", "unittest", "library_tests"], cwd=workplace.path, capture_output=True, check=False
    )
    if plain.returncode:
        pytest.skip("these tests fail without a recorder, too")
    recorded = workplace.record(runner, "library_tests")
    found = re.search(r"^sent (\d+)$", recorded.stdout, re.MULTILINE)
    assert found is not None, recorded.stderr
    assert int(found[1]) > 10
