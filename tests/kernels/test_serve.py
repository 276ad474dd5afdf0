"""The server: a real process, OpenAI's own client, one text alone and under load, the fingerprint in a header."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from spanreplay_kernels.__main__ import main as command
from spanreplay_kernels.demo import KINDS, tiny_model
from spanreplay_kernels.fingerprint import HEADER, HEADER_CHARS_MAX, fingerprint, revision_of
from spanreplay_kernels.serve import main

PROMPT: Final = "sell 1,000 ACME"


def write_model(folder: Path) -> Path:
    """A tiny model with a tokenizer of bytes, as a directory that a server loads."""
    tiny_model(KINDS[0]).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", *alphabet]
    words += [f"<w{n}>" for n in range(len(words), 512)]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(folder)
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on disk."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def client(model_folder: Path) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server that has come up."""
    port = free_port()
    starting = [sys.executable, "-m", "spanreplay_kernels", "serve", str(model_folder), "--port", str(port)]
    starting += ["--device", "cpu", "--threads", "2", "--cache-blocks", "32", "--max-batch-tokens", "128"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(starting, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    reader = threading.Thread(target=server.stderr.read)
    try:
        found = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120)
        wait_for(server, server.stderr)
        reader.start()  # what it says later must not fill the pipe
        yield found
    finally:
        server.terminate()
        server.wait(60)
        if reader.ident:
            reader.join(60)
        server.stderr.close()


def wait_for(server: subprocess.Popen[str], stderr: IO[str]) -> None:
    """Until the server says that it is up; fails with what it said if it ends before."""
    said: list[str] = []
    for line in stderr:
        said.append(line)
        if "Uvicorn running" in line:
            return
    pytest.fail(f"the server ended with {server.poll()}: {''.join(said)[-2000:]}")


def ask(client: openai.OpenAI, folder: Path, prompt: str, **options: Any) -> tuple[str, str]:
    """(text, fingerprint) of one answer."""
    raw = client.chat.completions.with_raw_response.create(
        model=str(folder), messages=[{"role": "user", "content": prompt}], max_tokens=8, **options
    )
    text = raw.parse().choices[0].message.content
    assert isinstance(text, str)
    return text, str(raw.headers[HEADER])


def test_k12_a_request_has_one_text_alone_and_under_load(client: openai.OpenAI, model_folder: Path) -> None:
    """Two requests alone, then among others of other lengths: the same text and the same fingerprint."""
    alone = ask(client, model_folder, PROMPT)
    crowd = [PROMPT, "a", "long " * 12, PROMPT, "something else", "long " * 7]
    with ThreadPoolExecutor(len(crowd)) as pool:
        together = list(pool.map(lambda prompt: ask(client, model_folder, prompt), crowd))
    assert together[0] == together[3] == alone
    assert len({text for text, _ in together}) > 1
    assert ask(client, model_folder, PROMPT, temperature=0) == alone


def test_k12_the_header_says_what_the_bits_depend_on(client: openai.OpenAI, model_folder: Path) -> None:
    """Package, torch, plans, processor, threads, dtype, weights, tensor parallelism; on streams and errors as well."""
    _, line = ask(client, model_folder, PROMPT)
    parts = dict(part.split("=", 1) for part in line.split("; "))
    assert list(parts) == ["kernels", "engine", "torch", "plan", "device", "threads", "dtype", "tp", "revision"]
    assert (parts["threads"], parts["dtype"], parts["tp"]) == ("2", "float32", "1")
    assert parts["revision"] == revision_of(str(model_folder), None)
    assert len(line) <= HEADER_CHARS_MAX
    stream = client.chat.completions.with_raw_response.create(
        model=str(model_folder), messages=[{"role": "user", "content": PROMPT}], max_tokens=4, stream=True
    )
    assert stream.headers[HEADER] == line
    assert len(list(stream.parse())) > 1


def test_k12_a_draw_has_one_text_alone_and_under_load(client: openai.OpenAI, model_folder: Path) -> None:
    """By temperature, top_p and seed of the request, streamed as well; other seeds have other texts."""
    options: dict[str, Any] = {"temperature": 1, "top_p": 0.9, "seed": 11}
    alone = ask(client, model_folder, PROMPT, **options)
    crowd = [options, {"temperature": 0.5}, {}, {"top_p": 0.5}, options, {**options, "seed": 12}]
    with ThreadPoolExecutor(len(crowd)) as pool:
        together = list(pool.map(lambda each: ask(client, model_folder, PROMPT, **each), crowd))
    assert together[0] == together[4] == alone
    assert together[2] == ask(client, model_folder, PROMPT)
    assert len({text for text, _ in together}) > 2
    chunks = client.chat.completions.create(
        model=str(model_folder), messages=[{"role": "user", "content": PROMPT}], max_tokens=8, stream=True, **options
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone[0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"temperature": -1}, "temperature is -1.0; pass a number from 0"),
        ({"temperature": 10**400}, "temperature is inf"),
        ({"top_p": 1.5}, "top_p is 1.5; pass a number from 0 to 1"),
        ({"seed": 0.5}, "seed has type float, expected int"),
        ({"n": 2}, "n: 2 is not supported; leave it out"),
        ({"presence_penalty": 0.5}, "presence_penalty: 0.5 is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
    ids=["temperature", "huge", "top_p", "seed", "n", "penalty", "bias"],
)
def test_k12_what_is_not_done_is_refused(
    client: openai.OpenAI, model_folder: Path, options: dict[str, Any], problem: str
) -> None:
    """By name, with what to do; the fingerprint is on errors too."""
    with pytest.raises(openai.BadRequestError, match=problem) as caught:
        ask(client, model_folder, PROMPT, **options)
    assert caught.value.response.headers[HEADER].startswith("kernels=")


def test_k12_another_model_cannot_be_loaded(client: openai.OpenAI) -> None:
    """What no audit has seen is not served."""
    with pytest.raises(openai.BadRequestError, match="closed on this server"):
        client.with_options(base_url=str(client.base_url).replace("/v1", "")).post(
            "load_model", cast_to=object, body={}
        )


def test_k12_a_model_that_cannot_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the port is opened, by name, with an exit status of its own."""
    write_model(tmp_path)
    shape: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=8)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    assert main([str(tmp_path), "--device", "cpu", "--port", "1"]) == 2
    assert "sliding_attention" in capsys.readouterr().err


def test_k12_fingerprints_tell_models_apart() -> None:
    """Other shapes have other plans; the same ones have the same line."""
    dense, moe = (tiny_model(kind) for kind in KINDS)
    line = fingerprint(dense, engine="e", revision="a")
    assert line == fingerprint(tiny_model(KINDS[0], seed=1), engine="e", revision="a")
    others = [(moe, "e", "a"), (dense, "f", "a"), (dense, "e", "b")]
    assert len({line, *(fingerprint(model, engine=e, revision=r) for model, e, r in others)}) == 4
    assert len(fingerprint(dense, engine="e", revision="r" * 300)) == HEADER_CHARS_MAX


def test_k12_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels alone need no server; who serves without one is told what to install."""
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "spanreplay_kernels.serve")
    assert command(["serve", "some/model"]) == 2
    assert "serve needs fastapi, which is not installed; pip install" in capsys.readouterr().err
