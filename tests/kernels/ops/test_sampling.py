"""Sampling: a row's token depends only on its logits, seed and position, and is drawn from their softmax."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, name_of, normal, with_hostile_neighbours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._philox import philox
from spanreplay_kernels.ops.sampling import sample, sample_ref, sample_triton

KNOWN = {
    "zeros": ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
"""Random123's published test vectors for philox4x32 with 10 rounds."""


def rows_of(batch: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """(seeds, positions): large, small and negative ones."""
    at = torch.arange(start, start + batch)
    return at * 7_919_000_000_000_001 - 3, at * 65_537 * (at % 3)


def by_kernel(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """`sample` by the Triton kernels."""
    rows = logits.shape[0]
    found = sample_triton(
        logits,
        seeds.to(logits.device),
        positions.to(logits.device),
        torch.full((rows,), temperature, device=logits.device),
        torch.full((rows,), top_k, device=logits.device) if top_k else None,
        torch.full((rows,), top_p, device=logits.device) if top_p < 1 else None,
    )
    return found.cpu()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN.values(), ids=KNOWN.keys())
def test_k9_generator_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Philox 4×32-10 matches the published one."""
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in words) == expected


PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.6},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_k9_kernel_and_cpu_draw_the_same_tokens(parameters: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    """Equal logits give equal tokens, whatever the parameters."""
    logits = normal(12, 301, dtype=dtype) * 3
    expected = sample(logits, *rows_of(12), **parameters)
    found = by_kernel(logits.to(device), *rows_of(12), **parameters)
    assert torch.equal(found, expected)
    assert expected.unique().numel() > 5


def test_k9_kernel_and_cpu_agree_over_many_chunks(device: str) -> None:
    """A vocabulary of several blocks with a ragged end, and one of a single token, are tried."""
    logits = normal(3, 8192 + 77, dtype=torch.float32)
    logits[0, 8192 + 76] = 50.0
    expected = sample(logits, *rows_of(3))
    assert int(expected[0]) == 8192 + 76
    assert torch.equal(by_kernel(logits.to(device), *rows_of(3)), expected)
    assert sample(logits[:, :1], *rows_of(3)).tolist() == [0, 0, 0]
    assert by_kernel(logits[:, :1].to(device), *rows_of(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("parameters", [{}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}], ids=str)
def test_k9_a_row_draws_its_token_in_every_batch(parameters: dict[str, Any], device: str) -> None:
    """In parts of a batch, in reverse and among hostile rows, on the CPU and by the kernel, the token is the same."""
    logits, (seeds, positions) = normal(130, 97, dtype=torch.float32) * 2, rows_of(130)
    whole = sample(logits, seeds, positions, **parameters)
    for rows in range(1, 130, 9):
        part = slice(rows % 10, rows % 10 + rows)
        found = sample(logits[part], seeds[part], positions[part], **parameters)
        assert torch.equal(found, whole[part]), rows
    found = sample(logits.flip(0), seeds.flip(0), positions.flip(0), **parameters)
    assert torch.equal(found.flip(0), whole)
    for row in (0, 64, 129):
        hostile = with_hostile_neighbours(logits, row)
        assert sample(hostile, seeds, positions, **parameters)[row] == whole[row]
    few = (logits[60:66].to(device), seeds[60:66], positions[60:66])
    assert torch.equal(by_kernel(*few, **parameters), whole[60:66])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_k11_number_of_threads_changes_no_token(threads: int) -> None:
    """The tokens are the same with any number of threads."""
    logits = normal(3, 9999, dtype=torch.float32)
    expected = sample(logits, *rows_of(3), top_p=0.9)
    torch.set_num_threads(threads)
    assert torch.equal(sample(logits, *rows_of(3), top_p=0.9), expected)


def test_k9_generator_of_a_batch_is_caught() -> None:
    """Negative control: torch.multinomial shares one state among rows, so a part of a batch draws other tokens."""
    p = normal(64, 97, dtype=torch.float32).softmax(1)

    def draw(rows: Tensor) -> Tensor:
        return torch.multinomial(rows, 1, generator=torch.Generator().manual_seed(0))[:, 0]

    assert not torch.equal(draw(p[7:50]), draw(p)[7:50])


def test_k9_seed_and_position_are_all_that_differs() -> None:
    """An equal (seed, position) draws the same; another value of either draws independently."""
    logits = torch.zeros(1, 1000).expand(64, 1000)
    one, many = torch.ones(64, dtype=torch.int64), torch.arange(64)
    assert sample(logits, one, one).unique().numel() == 1
    for seeds, positions in ((many, one), (one, many), (many << 32, one), (one, many << 32), (-many, one)):
        # 64 draws of 1000 give 62 different ones on average
        assert sample(logits, seeds, positions).unique().numel() >= 55


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_k9_tokens_are_drawn_by_their_probabilities(temperature: float) -> None:
    """40,000 draws at consecutive positions: each frequency is within four deviations of its probability."""
    draws, logits = 40_000, torch.tensor([2.0, 1.0, 0.0, 0.0, -1.0, -3.0, -float("inf")])
    tokens = sample(
        logits.expand(draws, 7), torch.full((draws,), 42), torch.arange(draws), temperature=temperature
    )  # fmt: skip
    expected = (logits.double() / temperature).softmax(0)
    for token, p in enumerate(expected.tolist()):
        deviation = math.sqrt(p * (1 - p) / draws)
        assert abs(float((tokens == token).double().mean()) - p) <= 4 * deviation, token
    # A draw says nothing about the next one
    first, second = (tokens[:-1] == 0).double(), (tokens[1:] == 0).double()
    p = float(expected[0])
    assert abs(float((first * second).mean()) - p * p) <= 4 * math.sqrt(p * p * (1 - p * p) / draws) * 1.5


def test_k9_rare_tokens_are_drawn_too() -> None:
    """The noise is fine enough for one in ten thousand: expected 30 of 300,000, 10 to 55 allowed."""
    draws = 300_000
    logits = torch.tensor([0.0, math.log(1e-4)]).expand(draws, 2)
    rare = int(sample(logits, torch.full((draws,), 7), torch.arange(draws)).sum())
    assert 10 <= rare <= 55


def test_k9_greedy_takes_the_lowest_of_the_largest(device: str) -> None:
    """Temperature 0 is argmax: ties go to the lowest id, zeros of both signs are equal, NaN is never chosen."""
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor(
        [[1.0, 3, 3, 2], [-1, -0.0, 0.0, -1], [nan, nan, 1, nan], [nan] * 4, [-inf] * 4, [0, inf, inf, 0]]
    )
    expected = [1, 1, 2, 0, 0, 1]
    assert sample(logits, *rows_of(6), temperature=0).tolist() == expected
    assert by_kernel(logits.to(device), *rows_of(6), temperature=0.0).tolist() == expected
    assert sample(logits, *rows_of(6), top_k=1).tolist() == expected


def test_k9_top_k_keeps_exactly_k_and_the_lowest_of_equal_ones() -> None:
    """Of five equal logits, top_k=2 keeps the first two."""
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0]).expand(500, 6)
    assert set(sample(logits, *rows_of(500), top_k=2).tolist()) == {1, 2}
    assert set(sample(logits, *rows_of(500)).tolist()) == set(range(6))


def test_k9_top_p_keeps_the_fewest_that_reach_p() -> None:
    """For p = 0.5, 0.3, 0.15, 0.05: the tokens that remain at each top_p, also after top_k."""
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(2000, 4)
    for top_p, kept in (
        (0.0, {1}),
        (0.49, {1}),
        (0.51, {1, 3}),
        (0.79, {1, 3}),
        (0.81, {0, 1, 3}),
        (0.96, {0, 1, 2, 3}),
    ):
        assert set(sample(logits, *rows_of(2000), top_p=top_p).tolist()) == kept, top_p
    # Among only 0.5 and 0.3 the first has 0.625
    assert set(sample(logits, *rows_of(2000), top_k=2, top_p=0.6).tolist()) == {1}
    assert set(sample(logits, *rows_of(2000), top_k=2, top_p=0.7).tolist()) == {1, 3}


def test_k9_parameters_of_each_row_are_its_own() -> None:
    """In a batch of mixed parameters each row draws as it does alone."""
    logits, (seeds, positions) = normal(6, 50, dtype=torch.float32) * 2, rows_of(6)
    temperature = torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0, 1.0])
    top_k, top_p = torch.tensor([0, 0, 3, 0, 10, 1]), torch.tensor([1.0, 1.0, 1.0, 0.5, 0.9, 0.0])
    together = sample(logits, seeds, positions, temperature=temperature, top_k=top_k, top_p=top_p)
    for row in range(6):
        alone = sample(
            logits[row : row + 1], seeds[row : row + 1], positions[row : row + 1],
            temperature=float(temperature[row]), top_k=int(top_k[row]), top_p=float(top_p[row]),
        )  # fmt: skip
        assert together[row] == alone[0], row


def test_definition_is_what_the_cpu_runs() -> None:
    """`sample` on the CPU is `sample_ref`."""
    logits = normal(5, 40, dtype=torch.float32)
    expected = sample_ref(logits, *rows_of(5), torch.full((5,), 0.8), None, None)
    assert torch.equal(sample(logits, *rows_of(5), temperature=0.8), expected)


def test_wrong_operands_are_refused() -> None:
    """The message names the operation, the shapes and what to pass; an empty batch is valid."""
    logits, (seeds, positions) = torch.ones(2, 4), rows_of(2)
    assert sample(logits[:0], seeds[:0], positions[:0]).shape == (0,)
    with pytest.raises(UnsupportedInput, match=r"sample: these are not rows of logits \(float32\[4\] cpu\)"):
        sample(logits[0], seeds, positions)
    with pytest.raises(UnsupportedInput, match="not one a row"):
        sample(logits, seeds[:1], positions)
    with pytest.raises(UnsupportedInput, match="not one a row"):
        sample(logits, seeds.int(), positions)
    for wrong in (
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"top_k": -1},
    ):
        with pytest.raises(UnsupportedInput, match=f"{next(iter(wrong))} is"):
            sample(logits, seeds, positions, **wrong)
    with pytest.raises(UnsupportedInput, match="temperature of some row is out of range"):
        sample(logits, seeds, positions, temperature=torch.tensor([1.0, -1.0]))
    with pytest.raises(UnsupportedInput, match="top_k is not one a row"):
        sample(logits, seeds, positions, top_k=torch.tensor([1.0, 2.0]))
