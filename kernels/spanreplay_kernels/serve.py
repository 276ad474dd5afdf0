"""`python -m spanreplay_kernels serve MODEL`: transformers' own OpenAI-compatible server, with these kernels.

The server, its routes and its continuous batching are transformers'; here the model is put under `enable`, a request's
tokens are greedy or drawn by its own seed, and each response says by what it was computed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import torch
import transformers
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from transformers import ContinuousBatchingConfig, ContinuousBatchingManager, GenerationConfig, PreTrainedModel
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.systemone import SystemOneHandler
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState

from spanreplay_kernels.engines.draws import Draw, seeded
from spanreplay_kernels.engines.transformers import check_continuous_batching, enable
from spanreplay_kernels.errors import KernelError, UnsupportedInput
from spanreplay_kernels.fingerprint import HEADER, fingerprint, revision_of

__all__ = ["build_app", "main"]

_NEW_TOKENS_DEFAULT: Final = 1024
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "generation_config": (None,),
}
"""What a request may say of how tokens are chosen, besides a draw's values: nothing that would be left out silently."""
_CLOSED: Final = ("/load_model", "/reset", "/v1/audio/transcriptions", "/v1/systemone")
"""Routes that would load, unload or run what no audit has seen."""
_draw: ContextVar[Draw] = ContextVar("draw")  # set by the middleware
"""Of the request that is being answered."""


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
    state.get_manager(model_id, use_cb=True)._cb = _started(
        model.init_continuous_batching(generation_config=_greedy(model), continuous_batching_config=batching)
    )
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


def _started(batching: ContinuousBatchingManager) -> ContinuousBatchingManager:
    """The manager at work, each request drawn as the call that is being answered says."""
    seeded(batching)
    add_request = batching.add_request
    batching.add_request = lambda *args, **kwargs: add_request(*args, **kwargs, **_draw.get()._asdict())
    batching.start()
    return batching


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
    """A middleware that reads how tokens are chosen, and puts the fingerprint into every response."""

    async def state(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            _draw.set(await _draw_of(request))
        except (TypeError, KernelError) as error:
            detail = {"message": str(error), "type": "invalid_request_error", "code": "not_deterministic"}
            response: Response = JSONResponse({"error": detail}, status_code=400)
        else:
            response = await call_next(request)
        response.headers[HEADER] = line
        return response

    return state


async def _draw_of(request: Request) -> Draw:
    """How the tokens of a request are chosen: greedily, unless it names a temperature or top_p; seed 0 by default.

    Raises: UnsupportedInput, TypeError for what this server does not do, or would do without saying so.
    """
    path = request.url.path
    if path in _CLOSED:
        raise UnsupportedInput(path, "it is closed on this server", hint="use the one model that was audited")
    if request.method != "POST":
        return Draw()
    try:
        body = json.loads(await request.body())
    except ValueError:
        return Draw()  # transformers answers what it cannot read
    if not isinstance(body, dict):
        return Draw()
    for name, allowed in _REFUSED.items():
        if body.get(name) not in allowed:
            hint = "leave it out, and send a request for each answer with a seed of its own"
            raise UnsupportedInput(name, f"{repr(body[name])[:60]} is not supported", hint=hint)
    top_p = _number(body.get("top_p"), 1.0)
    temperature = _number(body.get("temperature"), 0.0 if top_p == 1 else 1.0)
    draw = Draw(temperature, top_p, 0 if body.get("seed") is None else body["seed"])
    draw.check()
    return draw


def _number(value: Any, default: float) -> Any:
    """JSON has one kind of numbers; anything else stays, to be refused."""
    if type(value) is int:
        return float(str(value))  # of a huge one infinite, where float(value) would raise
    return default if value is None else value
