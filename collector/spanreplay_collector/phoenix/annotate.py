"""Write verdicts of replays as annotations on the spans that Phoenix shows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spanreplay.model.errors import AccessDenied, ServiceError, ServiceUnavailable
from spanreplay_collector.phoenix.client import PhoenixClient

IDENTIFIER: Final = "replay:latest"
"""Constant: a second identifier would make Phoenix show a mean instead of the label."""
_TIMEOUT_S: Final = 10.0
_EXPLANATION_CHARS_MAX: Final = 4000
_NOT_THERE: Final = 404

logger = logging.getLogger(__name__)


class PhoenixAnnotator:
    """Writes annotations; a later verdict replaces an earlier one. Thread-safe."""

    def __init__(self, url: str, token: str = "", *, timeout_s: float = _TIMEOUT_S) -> None:
        self._client = PhoenixClient(url, token, timeout_s=timeout_s)

    def annotate_verdict(
        self,
        root_span_id: str,
        diverging_span_id: str | None,
        verdict: str,
        explanation: str,
        metadata: Mapping[str, Any],
        *,
        divergence: str = "diverged",
    ) -> None:
        """Put `replay.verdict` on the recorded root span and `replay.divergence` on the span that differs.

        The spans need not be in Phoenix yet: it keeps annotations for about ten minutes.
        Raises: ServiceUnavailable, AccessDenied, ServiceError.
        """
        annotations = [_build(root_span_id, "replay.verdict", verdict, explanation, metadata)]
        if diverging_span_id:
            annotations.append(_build(diverging_span_id, "replay.divergence", divergence, explanation, metadata))
        body = json.dumps({"data": annotations}).encode()
        try:
            reply = self._client.request(
                "POST", "/v1/span_annotations?sync=false", body, {"content-type": "application/json"}
            )
        except OSError as exc:
            raise ServiceUnavailable(f"Phoenix does not answer at {self._client.base}: {exc}") from exc
        finally:
            self._client.close()  # verdicts are rare
        if reply.status in (401, 403):
            raise AccessDenied("Phoenix refuses the token", hint="give it PHOENIX_ADMIN_SECRET or an API key")
        if not reply.is_ok:
            raise ServiceError(f"Phoenix answered {reply.status} to an annotation")

    def delete_traces(self, trace_ids: Sequence[str]) -> bool:
        """Delete traces; return whether Phoenix has none of them any more. What it refuses is logged."""
        try:
            for trace_id in trace_ids:
                reply = self._client.request("DELETE", f"/v1/traces/{trace_id}")
                if not reply.is_ok and reply.status != _NOT_THERE:
                    logger.warning("Phoenix answered %d when a trace was to be deleted", reply.status)
                    return False
        except OSError as exc:
            logger.warning("Phoenix does not answer at %s: %s", self._client.base, exc)
            return False
        finally:
            self._client.close()
        return True


def _build(span_id: str, name: str, label: str, explanation: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    # No score: with one, Phoenix shows a mean instead of the label
    result: dict[str, Any] = {"label": label, "explanation": explanation[:_EXPLANATION_CHARS_MAX]}
    return {
        "span_id": span_id,
        "name": name,
        "annotator_kind": "CODE",
        "identifier": IDENTIFIER,
        "result": result,
        "metadata": dict(metadata),
    }
