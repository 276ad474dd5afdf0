"""`python -m spanreplay_kernels.probe`: check that a server is ready, warm it up, or test its invariance; no torch.

It sends requests as a client does, because a server that lists its model may still be unable to answer. The exit
status is 0 if the check passes, else 1 with one line on standard error.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

HEADER: Final = "x-spanreplay-determinism"
TIMEOUT_S: Final = 290.0
"""Below the 300 s that the chart's startup probe allows; the first completion may have to compile kernels."""
BODY_BYTES_MAX: Final = 1 << 20
PROMPT: Final = "Count from one to twenty in words, separated by commas: one, two,"
WORDS: Final = ("river", "stone", "lamp", "seven", "quiet", "engine", "paper", "green", "north", "bread", "window")


class Unwell(Exception):
    """The server failed a check; the message says which."""


def complete(url: str, model: str, prompt: str, tokens: int) -> tuple[str, str]:
    """Return the greedy completion of a prompt and its determinism line ("" if absent). Raises: Unwell."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 0, "stream": False}
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        path = f"{parts.path.rstrip('/')}/v1/completions"
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        raw = response.read(BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as exc:
        raise Unwell(f"{url} does not answer: {type(exc).__name__}") from exc
    finally:
        connection.close()
    if response.status != 200:
        raise Unwell(f"{url} answers {response.status}")
    try:
        answer: Any = json.loads(raw)
        text = answer["choices"][0]["text"]
    except (ValueError, LookupError, TypeError) as exc:
        raise Unwell(f"{url} answers 200 with something that is no completion") from exc
    return str(text), response.getheader(HEADER) or ""


def check_line(line: str, *, is_wanted: bool, expected: str) -> None:
    """Check the determinism line. Raises: Unwell if it is missing or not the expected one."""
    if not (is_wanted or expected):
        return
    if not line:
        raise Unwell(f"the completion carries no {HEADER}: the kernels are not at work")
    if expected and line != expected:
        raise Unwell(f"the determinism line is {line!r}, expected {expected!r}")


def warm_up(options: argparse.Namespace) -> None:
    """Complete a prompt of each length once, so that its kernels are compiled before users arrive. Raises: Unwell."""
    for tokens in options.tokens:
        _, line = complete(options.url, options.model, " ".join(["word"] * tokens), 2)
        check_line(line, is_wanted=options.header, expected=options.expect)


def check_ready(options: argparse.Namespace) -> None:
    """Request one completion of one token, and check its header if asked to. Raises: Unwell."""
    _, line = complete(options.url, options.model, "ready?", 1)
    check_line(line, is_wanted=options.header, expected=options.expect)


def check_invariance(options: argparse.Namespace) -> None:
    """Check that equal prompts among random neighbours get one completion and one line. Raises: Unwell."""
    source = random.Random(options.seed)  # noqa: S311 - load, not a secret
    prompts = [PROMPT] * options.prompts
    for _ in range(options.prompts):
        words = source.choices(WORDS, k=source.randint(1, 200))
        prompts.insert(source.randint(0, len(prompts)), " ".join(words))
    with ThreadPoolExecutor(options.parallel) as pool:
        answers = list(pool.map(lambda prompt: complete(options.url, options.model, prompt, options.length), prompts))
    same = Counter(answer for prompt, answer in zip(prompts, answers, strict=True) if prompt == PROMPT)
    texts, lines = {text for text, _ in same}, {line for _, line in same}
    if len(texts) > 1 or len(lines) > 1:
        counts = ", ".join(str(count) for count in sorted(same.values(), reverse=True))
        raise Unwell(f"{options.prompts} equal prompts have {len(texts)} completions, {len(lines)} lines ({counts})")
    check_line(lines.pop(), is_wanted=options.header, expected=options.expect)
    sys.stdout.write(f"{options.prompts} equal prompts among {options.prompts} neighbours: one completion\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spanreplay_kernels.probe", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, check in (("ready", check_ready), ("warm-up", warm_up), ("invariance", check_invariance)):
        verb = verbs.add_parser(name, help=(check.__doc__ or "").split(" Raises")[0])
        verb.set_defaults(check=check)
        verb.add_argument("--url", required=True, help="http://host:port of the server")
        verb.add_argument("--model", required=True, help="name by which it serves the model")
        verb.add_argument("--header", action="store_true", help=f"whether each answer must carry {HEADER}")
        verb.add_argument("--expect", default="", metavar="LINE", help="what that header must say")
    verbs.choices["warm-up"].add_argument(
        "--tokens", type=lambda text: [int(each) for each in text.split(",")], default=[1], help="lengths: 1,16,128"
    )
    verb = verbs.choices["invariance"]
    verb.add_argument("--prompts", type=int, default=50, help="equal prompts, and neighbours")
    verb.add_argument("--parallel", type=int, default=16, help="requests at one time")
    verb.add_argument("--length", type=int, default=48, help="tokens of each completion")
    verb.add_argument("--seed", type=int, default=0, help="of the neighbours")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run one check and return the exit status."""
    options = _parse(arguments)
    try:
        options.check(options)
    except Unwell as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
