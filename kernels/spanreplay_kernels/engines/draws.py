"""Sampling in transformers' continuous batching and `generate`: a temperature, top-p and seed for each request.

transformers applies the first request's settings to all, and uses one generator for the whole batch, so neighbours
change a request's tokens. Here `sample` draws first and leaves only the drawn token in the row; transformers then takes
the most likely token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.requests import FutureRequestState
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.sampling import TEMPERATURE_MAX, sample

__all__ = ["Draw", "SeededDraws", "seeded"]

_INT64: Final = 2**63


class Draw(NamedTuple):
    """A request's sampling settings: `manager.add_request(ids, **draw._asdict())`.

    The same values give the same tokens for the same prompt; temperature 0 is greedy.
    """

    temperature: float = 0.0
    """0 to 10⁶."""
    top_p: float = 1.0
    """0 to 1; 1 excludes no token."""
    seed: int = 0
    """−2⁶³ to 2⁶³ − 1."""

    def check(self) -> None:
        """Check the values. Raises: UnsupportedInput for one out of range, TypeError for one of another type."""
        for name, kind in _KINDS.items():
            if type(getattr(self, name)) is not kind:
                raise TypeError(f"{name} has type {type(getattr(self, name)).__name__}, expected {kind.__name__}")
        ranges = {"temperature": (0, TEMPERATURE_MAX), "top_p": (0, 1), "seed": (-_INT64, _INT64 - 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:  # NaN is in no range
                raise UnsupportedInput(
                    "draw", f"{name} is {getattr(self, name)}", hint=f"pass a number from {low} to {high}"
                )


_KINDS: Final[dict[str, type]] = {"temperature": float, "top_p": float, "seed": int}


def seeded(manager: ContinuousBatchingManager) -> ContinuousBatchingManager:
    """Make the manager's `add_request` take `temperature`, `top_p` and `seed`; call this before `start()`.

    A request that sets none is greedy. A token depends on its request's logits, settings and position, not on the rest
    of the batch. A request with a value out of range fails alone, with the reason in its `error`. Returns the manager.
    Raises: UnsupportedInput for a manager that is running, samples by itself, has other logits processors, returns
        probabilities, or prepares a batch before the last one is done.
    """
    config = manager.continuous_batching_config
    problems = {
        "it runs already": manager.is_running(),
        "do_sample draws from the whole batch's generator": bool(manager.generation_config.do_sample),
        "it has logits processors of its own": manager.logit_processor.do_processing,
        "return_logprobs would be of what is left behind a draw": config.return_logprobs,
        "graphs and asynchronous batching replay an earlier batch": (
            any(config.cuda_graph_booleans) or bool(config.use_async_batching)
        ),
    }
    for problem, is_so in problems.items():
        if is_so:
            hint = "make a manager of greedy decoding and call seeded() before start()"
            raise UnsupportedInput("seeded", problem, hint=hint)
    manager.logit_processor = _Draws()
    return manager


class _Draws(ContinuousBatchingLogitsProcessorList):
    """Leaves only the drawn token in sampled rows; greedy rows stay unchanged.

    Preparing and computing batches alternate, so the batch prepared last is the one being computed.
    """

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList())
        self.do_processing = True
        self.supported_keys = dict(_KINDS)
        self._rows: list[int] = []
        self._draws: list[Draw] = []
        self._positions: list[int] = []

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        super().check_kwargs(kwargs)
        Draw(**kwargs).check()

    def prepare_tensor_args(self, requests_in_batch: list[FutureRequestState], arg_storage: Tensor) -> Tensor:
        states = [request.state for request in requests_in_batch if request.has_new_token]
        draws = [Draw(**state.logit_processor_kwargs) for state in states]
        self._rows = [row for row, draw in enumerate(draws) if draw.temperature > 0]
        self._draws = [draws[row] for row in self._rows]
        self._positions = [states[row].position_offset for row in self._rows]
        return arg_storage

    def __call__(self, input_ids: torch.LongTensor, scores: Tensor, logits_processor_args: Tensor) -> Tensor:
        return _leave_drawn(scores, self._rows, self._draws, self._positions)


class SeededDraws(LogitsProcessor):
    """Seeded sampling for `generate`: `generate(**inputs, do_sample=False, logits_processor=[SeededDraws(…)])`.

    `draws`: one per row; `attention_mask`: (rows, width) of the prompts, padded on the left. A row's tokens depend on
    its own prompt and draw, and equal those from `seeded`. For a single greedy call of `generate`, without beams.
    Raises: UnsupportedInput for a value out of range, a number of draws other than of rows, prompts padded on the
        right.
    """

    def __init__(self, draws: Sequence[Draw], attention_mask: Tensor) -> None:
        rows, self._width = attention_mask.shape
        if len(draws) != rows:
            raise UnsupportedInput("draw", f"{len(draws)} draws for {rows} rows", hint="pass one draw for each row")
        if not bool(attention_mask[:, -1].all()):
            raise UnsupportedInput("draw", "a row ends in padding", hint='pad with tokenizer.padding_side = "left"')
        for draw in draws:
            draw.check()
        self._rows = [row for row, draw in enumerate(draws) if draw.temperature > 0]
        self._draws = [draws[row] for row in self._rows]
        lengths = attention_mask.sum(-1).tolist()
        self._lengths = [int(lengths[row]) for row in self._rows]
        self._count = rows

    def __call__(self, input_ids: torch.LongTensor, scores: Tensor) -> Tensor:
        """Return the scores, with only the drawn token left in each sampled row."""
        if len(scores) != self._count:
            hint = "make draws for this batch, and use no beams"
            raise UnsupportedInput("draw", f"{len(scores)} rows of scores for {self._count} draws", hint=hint)
        made = input_ids.shape[1] - self._width
        return _leave_drawn(scores, self._rows, self._draws, [length + made for length in self._lengths])


def _leave_drawn(scores: Tensor, rows: list[int], draws: list[Draw], positions: list[int]) -> Tensor:
    """Draw a token for each of `rows` and leave only that one in its scores, in place."""
    if not rows:
        return scores
    device = scores.device
    temperatures, top_ps, seeds = zip(*draws, strict=True)
    index = torch.tensor(rows, device=device)
    drawn = sample(
        scores[index],
        torch.tensor(seeds, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        temperature=torch.tensor(temperatures, dtype=torch.float32, device=device),
        top_p=1.0 if min(top_ps) == 1 else torch.tensor(top_ps, dtype=torch.float32, device=device),
    )
    scores[index] = -torch.inf
    scores[index, drawn] = 0.0
    return scores
