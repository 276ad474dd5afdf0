"""`python -m spanreplay_kernels serve MODEL`: transformers' own OpenAI-compatible server, with these kernels.

The server, its routes and continuous batching are transformers'. Here the model runs under `enable`, a request's tokens
are greedy or drawn with its own seed, and each response has the determinism header.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import torch
import transformers
import uvicorn
from fastapi import FastAPI, HTTPException, Request
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

from spanreplay_kernels.admission import Asked, Refused, read_request, refusal
from spanreplay_kernels.answers import answer_errors, fingerprinted
from spanreplay_kernels.engines.draws import Draw, seeded
from spanreplay_kernels.engines.transformers import check_continuous_batching, enable
from spanreplay_kernels.errors import KernelError
from spanreplay_kernels.proof.fingerprint import HEADER, fingerprint, revision_of

__all__ = ["build_app", "main"]

logger = logging.getLogger(__name__)

_NEW_TOKENS_DEFAULT: Final = 1024
_STARTED: Final = int(time.time())
_asked: ContextVar[Asked] = ContextVar("asked")  # set by the middleware
"""The settings of the current request."""


def main(arguments: list[str]) -> int:
    """Serve until interrupted; return 2 if the model can't be served batch-invariantly, else 0."""
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
                app.state.stop()  # while the model still uses our kernels
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
    """Build transformers' application for one model, with the fingerprint in each response. Use within `enable`."""
    processor = manager.loaded_models[model_id].processor
    revision = revision_of(options.model, getattr(model.config, "_commit_hash", None))
    engine = f"transformers-{transformers.__version__}"
    line = fingerprint(model, engine=engine, revision=revision, tokenizer=processor)
    state = GenerationState(continuous_batching=True, cb_config=_batching(options))
    # Before the first request: transformers would take the generation settings from it
    front = state.get_manager(model_id, use_cb=True)
    front._cb = _started(
        model.init_continuous_batching(
            generation_config=_greedy(model), continuous_batching_config=_batching(options)
        )
    )  # fmt: skip
    _limit(front, positions_of(model, options))
    manager.get_gen_models = lambda: [_listed(manager)]
    handlers = (ChatCompletionHandler, CompletionHandler, ResponseHandler)
    chat, text, responses = (fingerprinted(each, line)(manager, state) for each in handlers)
    app: FastAPI = build_server(
        manager,
        chat,
        completion_handler=text,
        response_handler=responses,
        transcription_handler=TranscriptionHandler(manager, state),
        systemone_handler=SystemOneHandler(manager, state),
        generation_state=state,
    )
    app.state.stop = state.shutdown
    answer_errors(app)

    @app.get("/v1/models/{name:path}")
    def retrieve_model(name: str) -> JSONResponse:
        if name != manager.force_model:
            raise HTTPException(404, f"this server has the one model {manager.force_model!r}")
        return JSONResponse(_listed(manager))

    app.middleware("http")(_stating(line, str(getattr(processor, "chat_template", None) or "")))
    return app


def _batching(options: argparse.Namespace) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        auto_switch_to_flash=False, max_batch_tokens=options.max_batch_tokens, num_blocks=options.cache_blocks
    )


def _listed(manager: ModelManager) -> dict[str, Any]:
    """Return the one served model, under the name that requests must use; others in the hub cache are not served."""
    return {"id": manager.force_model, "object": "model", "created": _STARTED, "owned_by": "spanreplay"}


def positions_of(model: PreTrainedModel, options: argparse.Namespace) -> int | None:
    """Return the most tokens of a request, prompt and answer together; None if only memory limits them."""
    limits = [getattr(model.config.get_text_config(), "max_position_embeddings", None)]
    if options.cache_blocks:
        limits.append(options.cache_blocks * _batching(options).page_size)
    return min((limit for limit in limits if limit), default=None)


def _limit(front: Any, positions: int | None) -> None:
    """Refuse requests that don't fit; without a stated length, an answer gets the remaining room, up to the default."""

    def fit(inputs: dict[str, Any], config: GenerationConfig) -> None:
        prompt, wanted = len(inputs["input_ids"]), _asked.get().tokens
        if not prompt:
            raise Refused("", "the prompt has no tokens")
        if positions is not None:
            if prompt + (wanted or 1) > positions:
                more = f" and {wanted} more are asked for" if wanted else ""
                raise Refused("", f"the prompt has {prompt} tokens{more}; {positions} is the most of both together")
            if wanted is None:
                # transformers also uses it to tell whether an answer ended because of its length
                config.max_new_tokens = min(_NEW_TOKENS_DEFAULT, positions - prompt)

    streaming, whole = front.generate_streaming, front.generate_non_streaming

    def generate_streaming(model: Any, processor: Any, inputs: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        fit(inputs, config)
        return streaming(model, processor, inputs, config, *args, **kwargs)

    async def generate_non_streaming(model: Any, processor: Any, inputs: Any, config: Any, **kwargs: Any) -> Any:
        fit(inputs, config)
        return await whole(model, processor, inputs, config, **kwargs)

    front.generate_streaming, front.generate_non_streaming = generate_streaming, generate_non_streaming


def _started(batching: ContinuousBatchingManager) -> ContinuousBatchingManager:
    """Start the manager; each request is sampled with the settings of the current call."""
    seeded(batching)
    add_request = batching.add_request
    batching.add_request = lambda *args, **kwargs: add_request(*args, **kwargs, **_drawn(_asked.get())._asdict())
    batching.start()
    return batching


def _drawn(asked: Asked) -> Draw:
    return Draw(asked.temperature, asked.top_p, asked.seed)


def _greedy(model: PreTrainedModel) -> GenerationConfig:
    stock = model.generation_config
    config = GenerationConfig(
        do_sample=False, max_new_tokens=_NEW_TOKENS_DEFAULT, eos_token_id=stock.eos_token_id,
        pad_token_id=stock.pad_token_id, bos_token_id=stock.bos_token_id,
    )  # fmt: skip
    config.use_cache = False  # continuous batching has its own
    # Requests without a temperature start from the model's own configuration
    model.generation_config = config
    return config


def _stating(
    line: str, template: str
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    """Return a middleware that reads a request's settings and adds the fingerprint to every response."""

    async def state(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            raw = await request.body()
            asked = read_request(request.url.path, request.method, raw, template=template)
            _drawn(asked).check()
            _asked.set(asked)
            response = await call_next(request)
        except (TypeError, KernelError) as error:
            response = JSONResponse(refusal(error), status_code=400)
        except Exception as error:
            logger.exception("a request failed")
            detail = {"message": f"{type(error).__name__}, see the log", "type": "server_error"}
            response = JSONResponse({"error": {**detail, "param": None, "code": None}}, status_code=500)
        response.headers[HEADER] = line
        return response

    return state
