"""Draws under transformers' continuous batching: each request's own temperature, top-p and seed.

transformers takes the first request's settings for all of them, and draws by one generator for the whole batch: a
neighbour changes what a request gets. Here `sample` has drawn before transformers takes the likeliest token: of a row
that draws, the token drawn is the only one left.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.requests import FutureRequestState
from transformers.generation.logits_process import LogitsProcessorList

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.sampling import TEMPERATURE_MAX, sample

__all__ = ["Draw", "seeded"]

_INT64: Final = 2**63


class Draw(NamedTuple):
    """How a request's tokens are chosen: `manager.add_request(ids, **draw._asdict())`.

    The same values give the same tokens for the same prompt; 0 is greedy.
    """

    temperature: float = 0.0
    """0 to 10⁶."""
    top_p: float = 1.0
    """0 to 1; 1 leaves no token out."""
    seed: int = 0
    """−2⁶³ to 2⁶³ − 1."""

    def check(self) -> None:
        """Raises: UnsupportedInput for a value out of range, TypeError for one of another type."""
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
    """The manager, whose `add_request` takes `temperature`, `top_p` and `seed`; call it before `start()`.

    A request that names none is greedy. A token depends on its request's logits, values and place in the sequence, not
    on who else is in the batch. A request whose value is out of range fails alone, with what is wrong in its `error`.
    Raises: UnsupportedInput for a manager that runs, draws by itself, has other logits processors, returns
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
    """Of the rows that draw, leaves the token drawn; others stay as they are, for whoever takes the likeliest.

    Preparing a batch and computing it come in turns, so that what was prepared last is what is computed.
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
        if not self._rows:
            return scores
        device = scores.device
        temperatures, top_ps, seeds = zip(*self._draws, strict=True)
        rows = torch.tensor(self._rows, device=device)
        drawn = sample(
            scores[rows],
            torch.tensor(seeds, dtype=torch.int64, device=device),
            torch.tensor(self._positions, dtype=torch.int64, device=device),
            temperature=torch.tensor(temperatures, dtype=torch.float32, device=device),
            top_p=1.0 if min(top_ps) == 1 else torch.tensor(top_ps, dtype=torch.float32, device=device),
        )
        scores[rows] = -torch.inf
        scores[rows, drawn] = 0.0
        return scores
