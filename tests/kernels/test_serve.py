"""The server: a real process, OpenAI's own client, one text alone and under load, the fingerprint in a header."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import httpx2
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from spanreplay_kernels import probe
from spanreplay_kernels.__main__ import main as command
from spanreplay_kernels.demo import KINDS, tiny_model
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.proof import fingerprint as fingerprints
from spanreplay_kernels.proof.fingerprint import (
    HEADER,
    HEADER_CHARS_MAX,
    digest_sources,
    fingerprint,
    join_parts,
    revision_of,
    system_fingerprint,
)
from spanreplay_kernels.serve import main
from support.ports import free_port

PROMPT: Final = "sell 1,000 ACME"


def write_model(folder: Path) -> Path:
    """Write a tiny model with a byte tokenizer, as a directory that a server loads."""
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


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on disk."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def client(model_folder: Path) -> Iterator[openai.OpenAI]:
    """OpenAI's client for a running server."""
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
        reader.start()  # its later output must not fill the pipe
        yield found
    finally:
        server.terminate()
        server.wait(60)
        if reader.ident:
            reader.join(60)
        server.stderr.close()


def wait_for(server: subprocess.Popen[str], stderr: IO[str]) -> None:
    """Wait until the server says that it is up; fail with its output if it ends before."""
    said: list[str] = []
    for line in stderr:
        said.append(line)
        if "Uvicorn running" in line:
            return
    pytest.fail(f"the server ended with {server.poll()}: {''.join(said)[-2000:]}")


def ask(client: openai.OpenAI, folder: Path, prompt: str, **options: Any) -> tuple[str, str]:
    """Return (text, fingerprint) of one answer."""
    raw = client.chat.completions.with_raw_response.create(
        model=str(folder), messages=[{"role": "user", "content": prompt}], max_tokens=8, **options
    )
    text = raw.parse().choices[0].message.content
    assert isinstance(text, str)
    return text, str(raw.headers[HEADER])


def test_k12_a_request_has_one_text_alone_and_under_load(client: openai.OpenAI, model_folder: Path) -> None:
    """Two requests have the same text and fingerprint alone and among others of different lengths."""
    alone = ask(client, model_folder, PROMPT)
    crowd = [PROMPT, "a", "long " * 12, PROMPT, "something else", "long " * 7]
    with ThreadPoolExecutor(len(crowd)) as pool:
        together = list(pool.map(lambda prompt: ask(client, model_folder, prompt), crowd))
    assert together[0] == together[3] == alone
    assert len({text for text, _ in together}) > 1
    assert ask(client, model_folder, PROMPT, temperature=0) == alone


def test_k12_the_header_says_what_the_bits_depend_on(client: openai.OpenAI, model_folder: Path) -> None:
    """Package, torch, plans, processor, threads, dtype, weights and tensor parallelism; on streams and errors too."""
    _, line = ask(client, model_folder, PROMPT)
    parts = dict(part.split("=", 1) for part in line.split("; "))
    assert list(parts) == [
        "kernels", "engine", "torch", "plan", "device", "threads", "dtype", "tp", "model", "revision",
    ]  # fmt: skip
    assert (parts["threads"], parts["dtype"], parts["tp"]) == ("2", "float32", "1")
    assert parts["revision"] == revision_of(str(model_folder), None)
    assert len(line) <= HEADER_CHARS_MAX
    stream = client.chat.completions.with_raw_response.create(
        model=str(model_folder), messages=[{"role": "user", "content": PROMPT}], max_tokens=4, stream=True
    )
    assert stream.headers[HEADER] == line
    assert len(list(stream.parse())) > 1


def test_k12_a_draw_has_one_text_alone_and_under_load(client: openai.OpenAI, model_folder: Path) -> None:
    """The text is drawn by the request's temperature, top_p and seed, streamed as well; other seeds differ."""
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
    """The error names the unsupported feature and a remedy, and has the fingerprint too."""
    with pytest.raises(openai.BadRequestError, match=problem) as caught:
        ask(client, model_folder, PROMPT, **options)
    assert caught.value.response.headers[HEADER].startswith("kernels=")


def raw_error(client: openai.OpenAI, route: str, body: object) -> tuple[int, Any, str]:
    """(status, answer, fingerprint) of a request that OpenAI's client would not send."""
    answer = httpx2.post(f"{client.base_url}{route}", json=body, timeout=120)
    return answer.status_code, answer.json(), answer.headers.get(HEADER, "")


HELLO: Final = [{"role": "user", "content": "hello"}]
REFUSED: Final[dict[str, tuple[str, Any, str]]] = {
    "no tokens": ("chat/completions", {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    "negative": ("chat/completions", {"messages": HELLO, "max_tokens": -5}, "max_tokens"),
    "a text": ("chat/completions", {"messages": HELLO, "max_tokens": "x"}, "max_tokens"),
    "the other name": ("chat/completions", {"messages": HELLO, "max_completion_tokens": True}, "max_completion_tokens"),
    "output tokens": ("responses", {"input": "hello", "max_output_tokens": 0}, "max_output_tokens"),
    "no messages": ("chat/completions", {"messages": []}, "messages"),
    "nothing": ("chat/completions", {}, "messages"),
    "no role": ("chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role"),
    "no prompt": ("completions", {"prompt": ""}, "prompt"),
    "logprobs": ("chat/completions", {"messages": HELLO, "logprobs": True}, "logprobs"),
    "logprobs of 0": ("completions", {"prompt": "a", "logprobs": 0}, "logprobs"),
    "json": ("chat/completions", {"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
    "stop": ("chat/completions", {"messages": HELLO, "stop": ["x"]}, "stop"),
    "suffix": ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    "never heard of": ("chat/completions", {"messages": HELLO, "min_p": 0.5}, "min_p"),
    "tools that the template leaves out": (
        "chat/completions",
        {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools",
    ),
    "a picture": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
        "messages[0].content[0]",
    ),
    "past the last position": ("chat/completions", {"messages": [{"role": "user", "content": "a" * 3000}]}, ""),
    "an answer past it": ("completions", {"prompt": "a", "max_tokens": 4000}, ""),
    "a tool call without a function": (
        "chat/completions",
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}]},
        "",
    ),
    "no object": ("chat/completions", [1], ""),
    "stream": ("completions", {"prompt": "a", "stream": "yes"}, "stream"),
    "another model": ("completions", {"prompt": "a", "model": "gpt-x"}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("route", "body", "param"), REFUSED.values(), ids=REFUSED)
def test_k12_a_bad_request_is_400_in_openais_shape(
    client: openai.OpenAI, model_folder: Path, route: str, body: Any, param: str
) -> None:
    """A bad request never gives 500, nor a partial answer; streamed or not, with the fingerprint."""
    for asked in [body] if isinstance(body, list) else [body, {"stream": True, **body}]:
        named = {"model": str(model_folder), **asked} if isinstance(asked, dict) else asked
        status, answer, line = raw_error(client, route, named)
        assert (status, answer["error"]["type"], answer["error"]["param"] or "") == (
            400,
            "invalid_request_error",
            param,
        )
        assert answer["error"]["message"]
        assert line.startswith("kernels=")
    assert ask(client, model_folder, PROMPT)[0]


def test_k12_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI, model_folder: Path) -> None:
    """Values that clients send by default change no answer."""
    alone = ask(client, model_folder, PROMPT)
    options: dict[str, Any] = {
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False, "user": "u",
        "response_format": {"type": "text"}, "tool_choice": "auto", "store": False, "stop": None,
    }  # fmt: skip
    assert ask(client, model_folder, PROMPT, **options) == alone


def test_k12_the_one_model_is_listed_first(client: openai.OpenAI, model_folder: Path, tmp_path: Path) -> None:
    """The model is listed without a hub's cache too, under the name that requests use."""
    assert [model.id for model in client.models.list()] == [str(model_folder)]
    assert client.models.retrieve(str(model_folder)).object == "model"
    with pytest.raises(openai.NotFoundError, match="one model"):
        client.models.retrieve("gpt-x")


def test_k12_answers_state_a_system_fingerprint(client: openai.OpenAI, model_folder: Path) -> None:
    """The fingerprint is made of plan and line, and is the same in answers, streams and legacy completions."""
    messages: Any = HELLO
    name = str(model_folder)
    raw = client.chat.completions.with_raw_response.create(model=name, messages=messages, max_tokens=2)
    line = str(raw.headers[HEADER])
    parts = dict(part.split("=", 1) for part in line.split("; "))
    stated = raw.parse().system_fingerprint
    assert stated == system_fingerprint(line)
    assert stated.startswith(f"fp-{parts['plan']}-")
    chunks = list(client.chat.completions.create(model=name, messages=messages, max_tokens=2, stream=True))
    assert {chunk.system_fingerprint for chunk in chunks} == {stated}
    assert client.completions.create(model=name, prompt="a", max_tokens=2).system_fingerprint == stated
    response = client.responses.create(model=name, input="a", max_output_tokens=2)
    assert response.model_extra == {"system_fingerprint": stated}


def test_k12_an_answer_of_no_stated_length_ends_with_the_positions(client: openai.OpenAI, model_folder: Path) -> None:
    """The answer uses the positions that its prompt leaves, and gives `length` as its reason."""
    prompt = "a" * 2040
    answer = client.completions.create(model=str(model_folder), prompt=prompt)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (8, "length")


def test_k12_another_model_cannot_be_loaded(client: openai.OpenAI) -> None:
    """Only a model that was audited is served."""
    with pytest.raises(openai.BadRequestError, match="closed on this server"):
        client.with_options(base_url=str(client.base_url).replace("/v1", "")).post(
            "load_model", cast_to=object, body={}
        )


def test_k12_a_model_that_cannot_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a model is refused by name before the port is opened, with its own exit status."""
    write_model(tmp_path)
    shape: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=8)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    assert main([str(tmp_path), "--device", "cpu", "--port", "1"]) == 2
    assert "sliding_attention" in capsys.readouterr().err


def test_k12_fingerprints_tell_models_apart() -> None:
    """Other shapes have other plans; equal models have the same line."""
    dense, moe = (tiny_model(kind) for kind in KINDS)
    line = fingerprint(dense, engine="e", revision="a")
    assert line == fingerprint(tiny_model(KINDS[0], seed=1), engine="e", revision="a")
    others = [(moe, "e", "a"), (dense, "f", "a"), (dense, "e", "b")]
    assert len({line, *(fingerprint(model, engine=e, revision=r) for model, e, r in others)}) == 4


def test_k12_a_long_line_keeps_what_it_tells_apart() -> None:
    """A recorder keeps 256 characters, so a value that is too long is replaced by its hash."""
    dense = tiny_model(KINDS[0])
    lines = {fingerprint(dense, engine="e", revision="r" * 300 + end) for end in ("a", "b")}
    assert len(lines) == 2
    assert max(map(len, lines)) <= HEADER_CHARS_MAX
    with pytest.raises(UnsupportedInput, match="leave some out"):
        join_parts({f"part{n}": "v" for n in range(60)})


def edit(path: Path, **members: Any) -> None:
    """Change members of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "eps": lambda folder: edit(folder / "config.json", rms_norm_eps=1e-5),
    "rope": lambda folder: edit(
        folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    ),
    "generation": lambda folder: edit(folder / "generation_config.json", eos_token_id=7),
    "tokenizer": lambda folder: edit(folder / "tokenizer.json", decoder=None),
    "template": lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}"),
}  # fmt: skip


def line_of(folder: Path, revision: str | None = None) -> str:
    """The fingerprint of a model on disk, or of a hub's model if a commit is given."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return fingerprint(model, engine="e", revision=revision or revision_of(str(folder), None), tokenizer=tokenizer)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_k12_equal_lines_are_equal_models(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Equal weights with another configuration, tokenizer or template are another model; another folder is not."""
    one, other = write_model(tmp_path / "one"), write_model(tmp_path / "other")
    assert line_of(one, "a") == line_of(other, "a")
    assert line_of(one) == line_of(other)
    change(other)
    revision_of.cache_clear()
    assert line_of(one) != line_of(other)
    assert line_of(one, "a") != line_of(other, "a")


def test_k12_an_edited_package_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own sources are part of the line, so that one more character in them shows."""
    copy = tmp_path / "spanreplay_kernels"
    shutil.copytree(Path(fingerprints.__file__).parents[1], copy)
    before = digest_sources()
    monkeypatch.setattr(fingerprints, "__file__", str(copy / "proof" / "fingerprint.py"))
    digest_sources.cache_clear()
    assert digest_sources() == before
    with (copy / "ops" / "matmul.py").open("a") as stream:
        stream.write("#")
    digest_sources.cache_clear()
    assert digest_sources() != before
    digest_sources.cache_clear()


def test_k12_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels alone need no server; without one, `serve` says what to install."""
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "spanreplay_kernels.serve")
    assert command(["serve", "some/model"]) == 2
    assert "serve needs fastapi, which is not installed; pip install" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["ready", "warm-up", "invariance"])
def test_h3_the_probes_of_a_pod_pass_on_the_real_server(client: openai.OpenAI, model_folder: Path, verb: str) -> None:
    """A pod's probes and `helm test` ask as they do in a cluster: a completion with the expected line."""
    url = str(client.base_url).removesuffix("/v1/")
    _, line = ask(client, model_folder, PROMPT)
    options = {
        "ready": [],
        "warm-up": ["--tokens=1,16,64"],
        "invariance": ["--prompts=4", "--parallel=4", "--length=4"],
    }
    command = [verb, f"--url={url}", f"--model={model_folder}", "--header", f"--expect={line}"]
    assert probe.main([*command, *options[verb]]) == 0
    assert probe.main(["ready", f"--url={url}", f"--model={model_folder}", "--expect=another line"]) == 1
