"""Local computation and screenshots as declared boundaries: served bit for bit, stored once."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spanreplay import codec
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.sql import ask
from support.up_server import start_up

# Reciprocal rank fusion in float32: a sum depends on its order, and the order on the threads
RANKING = """
import random, sys
import numpy as np
import spanreplay

bodies = 0

@spanreplay.boundary(kind="compute", name="fuse", effect="pure")
def fuse(rankings, k):
    global bodies
    bodies += 1
    scores = np.zeros(50, dtype=np.float32)
    for document in range(50):
        parts = [np.float32(1) / np.float32(k + ranking.index(document)) for ranking in rankings]
        random.SystemRandom().shuffle(parts)
        for part in parts:
            scores[document] += part
    scores += np.float32(random.SystemRandom().random() / 1000)
    order = np.argsort(-scores, kind="stable")
    return order, scores, scores[order[0]]

rng = random.Random(7)
rankings = [rng.sample(range(50), 50) for _ in range(40)]
order, scores, best = fuse(rankings, 60)
print(order.dtype, order.tolist())
print(scores.dtype, scores.shape, scores.tobytes().hex())
print(type(best), best.tobytes().hex())
print("bodies", bodies, file=sys.stderr)
"""


def test_s16_declared_ranking_is_served_bit_for_bit(workplace: Workplace) -> None:
    """A float32 fusion that differs between runs is served with every bit, without being computed."""
    pytest.importorskip("numpy")
    agent = workplace.write("agent.py", RANKING)
    recorded = workplace.record(agent)
    assert "bodies 1" in recorded.stderr
    again = workplace.record(agent, SPANREPLAY_MODE="off")
    assert again.stdout != recorded.stdout
    replayed = workplace.replay(agent, source=workplace.recording().run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert "bodies 0" in replayed.stderr
    assert [c.boundary for c in workplace.recording().calls] == ["compute:fuse"]


# The sum of random rows depends on their memory layout; redaction must find the key in a cell
SALES = """
import numpy as np, pandas as pd
import sys
import spanreplay

bodies = 0

@spanreplay.boundary("tool", name="load_sales")
def load_sales(days: int) -> pd.DataFrame:
    global bodies
    bodies += 1
    numbers = np.random.default_rng().standard_normal((days, 3)) * 1e3
    frame = pd.DataFrame(numbers, columns=["eu", "us", "asia"], copy=False)
    frame.index = pd.date_range("2026-03-28", periods=days, tz="Europe/Berlin", name="day")
    return frame.assign(note="use " + "sk-" + "abcdefghij" * 2, grade=pd.cut(frame["eu"], 3))

@spanreplay.boundary("tool", name="summarise")
def summarise(sales: pd.DataFrame, *, by: str) -> pd.Series:
    return sales.select_dtypes("number").resample(by).sum().sum()

sales = load_sales(1001)
print(sales.sum(numeric_only=True).tolist(), summarise(sales, by="W").tolist())
print(sales.dtypes.to_dict(), sales.index.freq, sales.index.tz, sales["grade"].cat.categories.tolist())
print("bodies", bodies, file=sys.stderr)
"""


def test_s61_frame_is_served_bit_for_bit(workplace: Workplace) -> None:
    """A frame of random numbers is served unchanged in another process, sums to the same digits, and hides its key."""
    pytest.importorskip("pandas")
    agent = workplace.write("agent.py", SALES)
    recorded = workplace.record(agent)
    assert "bodies 1" in recorded.stderr, recorded.stderr
    recording = workplace.recording()
    assert recording.completeness().is_complete
    assert [c.boundary for c in recording.calls] == ["tool:load_sales", "tool:summarise"]
    assert "abcdefghij" not in "".join(c.request + c.response for c in recording.calls)
    replayed = workplace.replay(agent, source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert "bodies 0" in replayed.stderr


STEPS = 30
SCREENS = 10
# A PNG of noise, about 1 MB; the screen changes at every third step
SCREENSHOTS = f"""
import hashlib, os, struct, sys, zlib
import spanreplay

def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

def draw():
    side = 591
    rows = b"".join(b"\\0" + os.getrandom(3 * side) for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows, 0))
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")

screen = b""

@spanreplay.boundary("tool", name="screenshot", effect="read")
def screenshot(step):
    global screen
    print("looked", file=sys.stderr)
    if step % {STEPS // SCREENS} == 0:
        screen = draw()
    return screen

for step in range({STEPS}):
    seen = screenshot(step)
    print(step, type(seen).__name__, len(seen), hashlib.sha256(seen).hexdigest(), flush=True)
"""


@pytest.mark.slow
def test_s18_thirty_screenshots_replay_and_are_stored_once(workplace: Workplace, tmp_path: Path) -> None:
    """Of 30 screenshots of 1 MB, ten different, the store keeps ten; a replay from it serves step 12 byte for byte."""
    agent = workplace.write("agent.py", SCREENSHOTS)
    with start_up(tmp_path) as server:
        recorded = workplace.record(agent)
        recording = workplace.recording()
        shipped = subprocess.run(
            [str(BIN / "spanreplay"), "ship", "--endpoint", server.otlp_endpoint],
            cwd=workplace.path,
            env=workplace.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert shipped.returncode == 0, shipped.stderr
        laptop = Workplace(tmp_path / "laptop", {**workplace.environ, "SPANREPLAY_ENDPOINT": server.endpoint})
        laptop.path.mkdir()
        replayed = laptop.replay(agent, source=recording.run_id)
        assert server.stop() == 0, server.log
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert (recorded.stderr.count("looked"), replayed.stderr.count("looked")) == (STEPS, 0)
    shots = [line.split() for line in recorded.stdout.splitlines()]
    image = codec.decode(json.loads(recording.calls[12].response)["value"])
    assert hashlib.sha256(image).hexdigest() == shots[12][3]
    assert len(image) > 1024 * 1024
    # A base64 text is 4/3 of its bytes; the rest of the run is small
    (stored,) = ask(server.data_dir, "SELECT sum(length(body)) AS bytes FROM blobs FINAL")
    assert len({shot[3] for shot in shots}) == SCREENS
    ratio = int(stored["bytes"]) / (sum(int(shot[2]) for shot in shots) * 4 / 3)
    sys.stdout.write(f"stored {stored['bytes']} bytes, {ratio:.3f} of what was recorded\n")
    assert ratio < SCREENS / STEPS + 0.01
