"""`python -m spanreplay_kernels serve MODEL`: transformers' own OpenAI-compatible server, with these kernels.

The server, its routes and its continuous batching are transformers'; here the model is put under `enable`, decoding is
greedy, and each response says by what it was computed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import torch
import transformers
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.systemone import SystemOneHandler
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState

from spanreplay_kernels.engines.transformers import check_continuous_batching, enable
from spanreplay_kernels.errors import KernelError
from spanreplay_kernels.fingerprint import HEADER, fingerprint, revision_of

__all__ = ["build_app", "main"]

_NEW_TOKENS_DEFAULT: Final = 1024
_GREEDY: Final[dict[str, tuple[Any, ...]]] = {
    "temperature": (None, 0),
    "top_p": (None, 1),
    "n": (None, 1),
    "best_of": (None, 1),
    "generation_config": (None,),
}
"""What a request may say of how tokens are chosen: one token, the likeliest."""
_CLOSED: Final = ("/load_model", "/reset", "/v1/audio/transcriptions", "/v1/systemone")
"""Routes that would load, unload or run what no audit has seen."""


def main(arguments: list[str]) -> int:
    """Serve until interrupted; the exit status: 2 if the model cannot be served so that its bits are its own."""
    options = _parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    manager = ModelManager(
        device=options.device, dtype=options.dtype, attn_implementation="sdpa", continuous_batching=True,
        force_model=f"{options.model}@{options.revision}" if options.revision else options.model,
    )  # fmt: skip
    ((model_id, loaded),) = manager.loaded_models.items()
    model: PreTrainedModel = loaded.model.eval()
    try:
        check_continuous_batching(model)
        with enable(model):
            app = build_app(model, model_id, manager, options)
            try:
                uvicorn.run(app, host=options.host, port=options.port, log_level="info", access_log=False)
            finally:
                app.state.stop()  # while its model's kernels are still ours
    except KernelError as error:
        sys.stderr.write(f"{options.model} cannot be served batch-invariantly: {error}\n")
        return 2
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spanreplay_kernels serve", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("model", help="name on the hub, or a local directory")
    parser.add_argument("--revision", help="commit of the hub; it is part of the fingerprint")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda:0, …")
    parser.add_argument("--dtype", default="auto", help="auto (the weights' own), bfloat16, float16, float32")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; part of the fingerprint")
    parser.add_argument("--max-batch-tokens", type=int, help="tokens of all requests that one step computes")
    parser.add_argument("--cache-blocks", type=int, help="blocks of 256 tokens that the cache holds")
    return parser.parse_args(arguments)


def build_app(model: PreTrainedModel, model_id: str, manager: ModelManager, options: argparse.Namespace) -> FastAPI:
    """transformers' application over one model, with the fingerprint in each response. For use within `enable`."""
    batching = ContinuousBatchingConfig(
        auto_switch_to_flash=False, max_batch_tokens=options.max_batch_tokens, num_blocks=options.cache_blocks
    )
    state = GenerationState(continuous_batching=True, cb_config=batching)
    # Before the first request could: transformers takes how tokens are chosen from whoever comes first
    state.get_manager(model_id, use_cb=True).init_cb(model, _greedy(model))
    serving = {"model_manager": manager, "generation_state": state}
    app: FastAPI = build_server(
        manager,
        ChatCompletionHandler(**serving),
        completion_handler=CompletionHandler(**serving),
        response_handler=ResponseHandler(**serving),
        transcription_handler=TranscriptionHandler(manager, state),
        systemone_handler=SystemOneHandler(**serving),
        generation_state=state,
    )
    app.state.stop = state.shutdown
    revision = revision_of(options.model, getattr(model.config, "_commit_hash", None))
    line = fingerprint(model, engine=f"transformers-{transformers.__version__}", revision=revision)
    app.middleware("http")(_stating(line))
    return app


def _greedy(model: PreTrainedModel) -> GenerationConfig:
    stock = model.generation_config
    config = GenerationConfig(
        do_sample=False, max_new_tokens=_NEW_TOKENS_DEFAULT, eos_token_id=stock.eos_token_id,
        pad_token_id=stock.pad_token_id, bos_token_id=stock.bos_token_id,
    )  # fmt: skip
    config.use_cache = False  # continuous batching has its own
    # Requests that name no temperature are built from the model's own
    model.generation_config = config
    return config


def _stating(line: str) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    """A middleware that refuses what is not greedy, and puts the fingerprint into every response."""

    async def state(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        problem = await _problem_of(request)
        if problem:
            error = {"message": problem, "type": "invalid_request_error", "code": "not_deterministic"}
            response: Response = JSONResponse({"error": error}, status_code=400)
        else:
            response = await call_next(request)
        response.headers[HEADER] = line
        return response

    return state


async def _problem_of(request: Request) -> str:
    if request.url.path in _CLOSED:
        return f"{request.url.path} is closed on this server: it serves one model that was audited"
    if request.method != "POST":
        return ""
    try:
        body = json.loads(await request.body())
    except ValueError:
        return ""  # transformers answers what it cannot read
    for name, allowed in _GREEDY.items():
        if isinstance(body, dict) and body.get(name) not in allowed:
            return f"{name} is {body[name]!r}: draws depend on the batch; leave it out, or ask for greedy decoding"
    return ""
