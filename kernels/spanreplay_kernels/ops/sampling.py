"""Sampling: the next token depends only on the row's logits, seed and position.

argmax(logits / temperature + noise), with Gumbel noise from a counter-based generator, is a draw from the softmax
without a sum over the vocabulary. The sum that top-p needs is one of integers. Every remaining operation has exactly
one correct rounding under IEEE 754, so CPU and GPU draw the same token from the same logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._philox import philox, philox_in_kernel
from spanreplay_kernels.ops._portable import exp, log, log_in_kernel
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import check_dtype, dense_rows

__all__ = ["TEMPERATURE_MAX", "sample", "sample_ref", "sample_triton"]

_VOCABULARY_MAX = 2**24
TEMPERATURE_MAX = 1e6
"""At temperatures far above this, all logits round to the same value."""
_CHUNK = 8192
"""Tokens per program; the maximum over all programs doesn't depend on how many there are."""
_ONE = 2.0**40
"""The largest probability as an integer: the sum of 2²⁴ of them fits into an unsigned 64-bit integer."""
_WORDS = 4


def sample_ref(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> Tensor:
    """Return the token of each row, in plain PyTorch: the definition. One parameter per row; None turns it off."""
    # (1) NaN counts as the smallest logit; -0.0 becomes 0.0
    x = logits.float()
    x = torch.where(x == x, x, -torch.inf) + 0.0
    tokens = torch.arange(x.shape[1], device=x.device)
    # (2) Only the first tokens in the order (−logit, id) take part
    is_kept = torch.ones_like(x, dtype=torch.bool)
    if top_k is not None or top_p is not None:
        value, token = _last_kept(x, temperature, top_k, top_p)
        is_kept = (x > value[:, None]) | ((x == value[:, None]) & (tokens <= token[:, None]))
    # (3) Gumbel noise; none at temperature 0
    is_greedy = (temperature == 0)[:, None]
    scaled = x / torch.where(is_greedy, 1.0, temperature[:, None])
    scores = torch.where(is_greedy, scaled, scaled - log(_exponential(_words(seeds, positions, x.shape[1]))))
    scores = torch.where(is_kept & (scores == scores), scores, -torch.inf)
    # (4) The largest score wins; ties go to the lowest id
    best = scores.amax(1, keepdim=True)
    return torch.where(scores == best, tokens, x.shape[1]).amin(1)


def _words(seeds: Tensor, positions: Tensor, width: int) -> Tensor:
    """Return a random 32-bit word per token (B, width): word t % 4 of counter (t // 4, position), keyed by seed."""
    mask = 0xFFFFFFFF
    quads = torch.arange(-(-width // _WORDS), device=seeds.device)[None]
    low, high = (positions & mask)[:, None], ((positions >> 32) & mask)[:, None]
    key = ((seeds & mask)[:, None], ((seeds >> 32) & mask)[:, None])
    words = philox((quads, low, high, torch.zeros_like(quads)), key)
    return torch.stack(words, 2).reshape(seeds.shape[0], -1)[:, :width]


def _exponential(words: Tensor) -> Tensor:
    """Return −log(1 − v) for v = (word + ½) / 2³²; exact for small results, which are the ones that win."""
    v = (words.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp(max=1.0 - 2.0**-24)
    rest = 1.0 - v
    # The logarithm's first term restores the bits that the subtraction lost
    return (v - (1.0 - rest)) / rest - log(rest)


def _last_kept(
    x: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (logit, id) of the last token that takes part, in the order (−logit, id)."""
    width = x.shape[1]
    values, ids = x.sort(dim=1, descending=True, stable=True)
    count = torch.full((x.shape[0],), width, device=x.device)
    if top_k is not None:
        count = torch.where(top_k > 0, top_k.clamp(max=width), count)
    if top_p is not None:
        scaled = values / torch.where(temperature == 0, 1.0, temperature)[:, None]
        powers = exp(scaled - scaled[:, :1])
        powers = torch.where(powers == powers, powers, 0.0)
        is_among = torch.arange(width, device=x.device) < count[:, None]
        # Probabilities as integers: their sum is the same in every order
        shares = torch.where(is_among, (powers * _ONE).to(torch.int64), 0)
        before = shares.cumsum(1) - shares
        needed = top_p.double() * shares.sum(1).double()
        nucleus = (is_among & (before.double() < needed[:, None])).sum(1).clamp(min=1)
        count = torch.where(top_p < 1, nucleus, count)
    last = (count - 1)[:, None]
    return values.gather(1, last)[:, 0], ids.gather(1, last)[:, 0]


def sample(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    top_k: Tensor | int = 0,
    top_p: Tensor | float = 1.0,
) -> Tensor:
    """Draw a token for each row from softmax(logits / temperature); bitwise batch-invariant.

    temperature 0 is greedy. top_k keeps the k largest logits, 0 keeps all. top_p then keeps the fewest of those, from
    the largest down, whose probabilities sum to at least p times the total of all kept. Of equal logits the lower id
    ranks higher; NaN ranks lowest. A row with no logit above −Inf gives 0.

    Shapes: logits (B, V) any B, V ≤ 2²⁴; seeds, positions and result (B,); parameters a number or (B,).
    Dtypes: logits bf16, fp16, fp32; seeds, positions and result int64; temperature and top_p are converted to fp32.
    Invariance: row i depends only on logits[i], seeds[i], positions[i] and its parameters; CPU and GPU give the same
        result by construction.
    Raises: UnsupportedInput for other shapes, dtypes or devices, and for parameters out of range; the range of tensors
        is checked on a CPU only.
    Source: Gumbel-max: Maddison, Tarlow & Minka 2014, arXiv:1411.0030; top-p: Holtzman et al. 2019, arXiv:1904.09751.
    """
    _check(logits, seeds, positions)
    arch = arch_of(logits.device)
    params = (
        _per_row("temperature", logits, temperature, 0.0, TEMPERATURE_MAX),
        None if isinstance(top_k, int) and top_k == 0 else _per_row("top_k", logits, top_k, 0, 2**31).long(),
        None if isinstance(top_p, float | int) and top_p == 1 else _per_row("top_p", logits, top_p, 0.0, 1.0),
    )
    if logits.shape[0] == 0:
        return seeds.new_empty(0)
    if arch is CPU:
        # Only sorting, comparisons, integers and operations with one IEEE 754 rounding: the batch can't change anything
        return sample_ref(logits, seeds, positions, *params)
    return sample_triton(logits, seeds, positions, *params)


def _check(logits: Tensor, seeds: Tensor, positions: Tensor) -> None:
    hint = f"pass (B, V) with V up to {_VOCABULARY_MAX}, and int64 (B,) twice"
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= _VOCABULARY_MAX:
        raise UnsupportedInput("sample", "these are not rows of logits", logits, hint=hint)
    check_dtype("sample", logits)
    for each in (seeds, positions):
        if each.shape != logits.shape[:1] or each.dtype != torch.int64 or each.device != logits.device:
            problem = "seeds and positions are not one a row"
            raise UnsupportedInput("sample", problem, logits, seeds, positions, hint=hint)


def _per_row(name: str, logits: Tensor, value: Tensor | float, low: float, high: float) -> Tensor:
    """Return a parameter as one fp32 or int64 value per row."""
    hint = f"pass a number from {low} to {high}, or one a row"
    if not isinstance(value, Tensor):
        if not low <= value <= high:  # NaN is in no range
            raise UnsupportedInput("sample", f"{name} is {value}", logits, hint=hint)
        dtype = torch.int64 if name == "top_k" else torch.float32
        return torch.full(logits.shape[:1], value, dtype=dtype, device=logits.device)
    if (
        value.shape != logits.shape[:1]
        or value.device != logits.device
        or (name == "top_k") == value.is_floating_point()
    ):
        raise UnsupportedInput("sample", f"{name} is not one a row", logits, value, hint=hint)
    is_known = value.device.type == "cpu"
    if is_known and not bool(((value >= low) & (value <= high)).all()):
        raise UnsupportedInput("sample", f"{name} of some row is out of range", logits, value, hint=hint)
    return value if name == "top_k" else value.float()


@triton.jit
def _better(best, token, other, other_token):
    """Return the larger score and its token; ties go to the lower token."""
    takes = (other > best) | ((other == best) & (other_token < token))
    return tl.where(takes, other, best), tl.where(takes, other_token, token)


@triton.jit
def _score(row_ptr, tokens, end, words, temperature, last_value, last_token, HAS_LAST: tl.constexpr):
    """Return the scores of tokens, as in steps (1) to (3) of `sample_ref`; −Inf for tokens that don't take part."""
    x = tl.load(row_ptr + tokens, mask=tokens < end, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    scaled = tl.math.div_rn(x, tl.where(temperature == 0, tl.full(x.shape, 1.0, tl.float32), temperature))
    v = words.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    v = tl.where(v > 0.99999994039535522, 0.99999994039535522, v)
    rest = 1.0 - v
    drawn = tl.math.div_rn(v - (1.0 - rest), rest) - log_in_kernel(rest)
    scores = tl.where(temperature == 0, scaled, scaled - log_in_kernel(drawn))
    is_kept = (tokens < end) & (scores == scores)
    if HAS_LAST:
        is_kept = is_kept & ((x > last_value) | ((x == last_value) & (tokens <= last_token)))
    return tl.where(is_kept, scores, float("-inf"))


@triton.jit
def sample_kernel(
    logits_ptr, seeds_ptr, positions_ptr, temperature_ptr, last_value_ptr, last_token_ptr,
    scores_ptr, tokens_ptr, V, CHUNK: tl.constexpr, QUADS: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """Find the best token in one chunk of one row."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    last_value, last_token = 0.0, 0
    if HAS_LAST:
        last_value, last_token = tl.load(last_value_ptr + row), tl.load(last_token_ptr + row)
    best = tl.full((QUADS,), float("-inf"), tl.float32)
    token = tl.full((QUADS,), 2147483647, tl.int32)
    zero = tl.zeros((QUADS,), tl.uint32)
    for start in range(0, tl.minimum(CHUNK, V - chunk * CHUNK), QUADS * 4):
        tokens = chunk * CHUNK + start + tl.arange(0, QUADS) * 4
        w0, w1, w2, w3 = philox_in_kernel(
            (tokens // 4).to(tl.uint32), zero + position.to(tl.uint32), zero + (position >> 32).to(tl.uint32), zero,
            zero + seed.to(tl.uint32), zero + (seed >> 32).to(tl.uint32),
        )  # fmt: skip
        at = logits_ptr + row * V
        score = _score(at, tokens, V, w0, temperature, last_value, last_token, HAS_LAST)
        best, token = _better(best, token, score, tokens)
        score = _score(at, tokens + 1, V, w1, temperature, last_value, last_token, HAS_LAST)
        best, token = _better(best, token, score, tokens + 1)
        score = _score(at, tokens + 2, V, w2, temperature, last_value, last_token, HAS_LAST)
        best, token = _better(best, token, score, tokens + 2)
        score = _score(at, tokens + 3, V, w3, temperature, last_value, last_token, HAS_LAST)
        best, token = _better(best, token, score, tokens + 3)
    largest = tl.max(best, 0)
    out = row * tl.num_programs(1) + chunk
    tl.store(scores_ptr + out, largest)
    tl.store(tokens_ptr + out, tl.min(tl.where(best == largest, token, 2147483647), 0))


@triton.jit
def pick_kernel(scores_ptr, tokens_ptr, out_ptr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """Pick the best of a row's chunks."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row * CHUNKS + chunks, mask=chunks < CHUNKS, other=float("-inf"))
    tokens = tl.load(tokens_ptr + row * CHUNKS + chunks, mask=chunks < CHUNKS, other=2147483647)
    best = tl.max(scores, 0)
    tl.store(out_ptr + row, tl.min(tl.where(scores == best, tokens, 2147483647), 0).to(tl.int64))


def sample_triton(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None,
) -> Tensor:  # fmt: skip
    """Run `sample` with the kernels; the caller has checked the operands. Parameters as in `sample_ref`."""
    logits = dense_rows(logits)
    (B, V), device = logits.shape, logits.device
    has_last = top_k is not None or top_p is not None
    last_value, last_token = temperature, positions
    if has_last:
        # torch may sort: the order by (−logit, id) is unique, whatever the algorithm
        x = logits.float()
        x = torch.where(x == x, x, -torch.inf) + 0.0
        last_value, last_token = _last_kept(x, temperature, top_k, top_p)
    chunks = triton.cdiv(V, _CHUNK)
    scores = torch.empty((B, chunks), dtype=torch.float32, device=device)
    tokens = torch.empty((B, chunks), dtype=torch.int32, device=device)
    out = torch.empty(B, dtype=torch.int64, device=device)
    launch(
        sample_kernel, (B, chunks), logits, seeds.contiguous(), positions.contiguous(), temperature.contiguous(),
        last_value, last_token, scores, tokens, V, CHUNK=min(_CHUNK, triton.next_power_of_2(max(V, 64))),
        QUADS=min(256, triton.next_power_of_2(max(V, 64)) // _WORDS), HAS_LAST=has_last,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    block = triton.next_power_of_2(chunks)
    launch(pick_kernel, (B,), scores, tokens, out, CHUNKS=chunks, BLOCK=block, num_warps=4)
    return out
