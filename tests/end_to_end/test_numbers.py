"""Each call has one number everywhere: 1 to N, in the order in which the calls started."""

from __future__ import annotations

import json
import re
import subprocess

from support.replaying import BIN, Workplace

AGENT = """
import concurrent.futures, time
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look(n):
    time.time()
    return n

@spanreplay.boundary("tool", effect="write")
def pay(amount):
    return look(amount)

def work(n):
    return look(n) + look(n + 10)

print(work(1))
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    print(sum(pool.map(work, (2, 3))))
print(pay(AMOUNT))
"""


def _spanreplay(workplace: Workplace, *arguments: str) -> str:
    done = subprocess.run(
        [str(BIN / "spanreplay"), *arguments],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_u5_a_call_has_one_number_everywhere(workplace: Workplace) -> None:
    """`show`, `--call`, `--to`, the verdict and its hint number the calls 1 to N, independent of the clock."""
    workplace.write("agent.py", AGENT.replace("AMOUNT", "5"))
    workplace.record("agent.py")
    calls = workplace.recording().calls
    assert [call.number for call in calls] == list(range(1, 9))
    assert [call.seq for call in calls] != [call.number for call in calls]
    tree = _spanreplay(workplace, "show", "latest")
    shown = [int(n) for n in re.findall(r"^[\s│├└─]*(\d+) tool ", tree, re.MULTILINE)]
    assert sorted(shown) == list(range(1, 9))
    assert "pool job work 2" in tree
    listed = json.loads(_spanreplay(workplace, "show", "latest", "--json"))["calls"]
    assert [each["call"] for each in listed] == list(range(1, 9))

    stopped = workplace.replay("agent.py", options=["--to", "7"])
    assert "stopped before call 7 (tool:pay), as asked" in stopped.stderr

    workplace.write("agent.py", AGENT.replace("AMOUNT", "50"))
    done = workplace.replay("agent.py")
    assert done.status == 3
    assert "✘ diverged at call 7 (tool:pay): arguments.amount differs" in done.stderr
    assert re.search(r"hint +spanreplay show \w+ --call 7,", done.stderr)
    assert _spanreplay(workplace, "show", "latest", "--call", "7").startswith("call 7  tool:pay  ok\n")
    assert done.verdict["divergences"][0]["call"] == 7


def test_u5_a_call_that_the_recording_lacks_has_its_place(workplace: Workplace) -> None:
    """A new call is numbered in the order of the replay; calls inside served ones are counted too."""
    workplace.write("agent.py", AGENT.replace("AMOUNT", "5"))
    workplace.record("agent.py")
    workplace.write("agent.py", AGENT.replace("AMOUNT", "5") + "\nprint(pay(6))\n")
    done = workplace.replay("agent.py")
    assert "✘ diverged at call 9 (tool:pay): the recording has no such call" in done.stderr
