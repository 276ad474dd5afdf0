"""Adapts the responses of transformers' handlers to OpenAI's clients: fingerprint, errors, defaults."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from spanreplay_kernels.admission import Refused, refusal
from spanreplay_kernels.errors import KernelError
from spanreplay_kernels.proof.fingerprint import system_fingerprint

__all__ = ["answer_errors", "fingerprinted"]

_PROBLEM_CHARS: Final = 300
_is_read: ContextVar[bool] = ContextVar("is_read")
"""Whether the current request has been tokenised; an error before that is the request's fault."""


def fingerprinted(handler: Any, line: str) -> Any:
    """Return a subclass of a transformers handler that adds `system_fingerprint` to responses and to each chunk."""
    stated = system_fingerprint(line)

    class Fingerprinted(handler):
        async def handle_request(self, body: dict[str, Any], request_id: str) -> Response:
            if body.get("stream") is None:
                body["stream"] = False  # OpenAI's default; transformers' /v1/responses has another
            _is_read.set(False)
            try:
                response: Response = await super().handle_request(body, request_id)
            except (HTTPException, KernelError):
                raise
            except Exception as error:
                if _is_read.get():
                    raise
                problem = f"{type(error).__name__}: {error}"[:_PROBLEM_CHARS]
                raise Refused(
                    "", f"the model's chat template, or what reads its input, refuses it: {problem}"
                ) from error
            if isinstance(response, JSONResponse):
                answer = {**json.loads(bytes(response.body)), "system_fingerprint": stated}
                return JSONResponse(answer, status_code=response.status_code)
            return response

        def _build_generation_config(self, *args: Any, **kwargs: Any) -> Any:
            _is_read.set(True)  # handlers call this as soon as a request is tokenised
            return super()._build_generation_config(*args, **kwargs)

        def chunk_to_sse(self, chunk: Any) -> str:
            if hasattr(chunk, "choices"):
                chunk.system_fingerprint = stated
            return str(super().chunk_to_sse(chunk))

    return Fingerprinted


def answer_errors(app: FastAPI) -> None:
    """Return errors in OpenAI's format: a faulty request gets 400, whatever status transformers uses."""

    @app.exception_handler(HTTPException)
    async def of_route(_request: Request, error: HTTPException) -> JSONResponse:
        status = 400 if error.status_code == 422 else error.status_code
        kind = "invalid_request_error" if status < 500 else "server_error"
        detail = {"message": str(error.detail), "type": kind, "param": None, "code": None}
        return JSONResponse({"error": detail}, status_code=status)

    @app.exception_handler(RequestValidationError)
    async def of_body(_request: Request, _error: RequestValidationError) -> JSONResponse:
        return JSONResponse(refusal(ValueError("the body is not what this route reads")), status_code=400)

    @app.exception_handler(KernelError)
    async def of_kernels(_request: Request, error: KernelError) -> JSONResponse:
        return JSONResponse(refusal(error), status_code=400)
