"""Draws under continuous batching depend only on a request's own values, its logits and its position."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from spanreplay_kernels.demo import KINDS, tiny_model
from spanreplay_kernels.engines.draws import Draw, SeededDraws, seeded
from spanreplay_kernels.engines.transformers import enable
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.sampling import sample

NEW_TOKENS: Final = 8
WAIT_S: Final = 120
Request = tuple[list[int], Draw]


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Iterator[PreTrainedModel]:
    """A tiny model under our kernels."""
    found = tiny_model(request.param)
    with enable(found):
        yield found


def manager_of(model: PreTrainedModel, *, do_sample: bool = False, **batching: Any) -> Any:
    """A manager that has not been started."""
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=do_sample, eos_token_id=-1, pad_token_id=0)
    options = {"num_blocks": 64, "max_batch_tokens": 64, **batching}
    if "auto_switch_to_flash" in inspect.signature(ContinuousBatchingConfig).parameters:
        options["auto_switch_to_flash"] = False  # in transformers 5.18 and later; before, nothing switches
    return model.init_continuous_batching(
        generation_config=config, continuous_batching_config=ContinuousBatchingConfig(**options)
    )


def answers(model: PreTrainedModel, requests: list[Request]) -> list[Any]:
    """The results of one server for all these requests."""
    manager = seeded(manager_of(model))
    manager.start()
    try:
        ids = [manager.add_request(tokens, **draw._asdict()) for tokens, draw in requests]
        return [manager.get_result(request_id=each, timeout=WAIT_S) for each in ids]
    finally:
        manager.stop(block=True, timeout=WAIT_S)


def texts(model: PreTrainedModel, requests: list[Request]) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    found = answers(model, requests)
    assert [each.error for each in found] == [None] * len(found)
    return [tuple(each.generated_tokens) for each in found]


def prompt_of(source: random.Random, tokens: int) -> list[int]:
    """Random tokens."""
    return [source.randrange(2, 512) for _ in range(tokens)]


def test_k12_a_draw_is_the_same_among_whoever_else(model: PreTrainedModel) -> None:
    """One prompt with one seed gives one text, among others of any lengths, seeds and temperatures."""
    source = random.Random(0)
    prompt, draw = prompt_of(source, 20), Draw(0.9, 0.95, 7)
    (alone,) = texts(model, [(prompt, draw)])
    crowd: list[Request] = [(prompt, draw)] * 6
    crowd += [
        (prompt_of(source, source.randrange(1, 60)), Draw(source.choice([0.0, 0.5, 1.5]), 0.8, number))
        for number in range(6)
    ]
    order = list(range(len(crowd)))
    source.shuffle(order)
    found = texts(model, [crowd[at] for at in order])
    assert {text for at, text in zip(order, found, strict=True) if at < 6} == {alone}
    assert len(set(found)) > 3


def test_k12_a_draw_is_of_its_sequence_place_and_seed(model: PreTrainedModel) -> None:
    """A server draws in batches the same tokens as `sample` from the model's logits, one at a time."""
    prompt, draw = prompt_of(random.Random(1), 30), Draw(1.0, 0.9, -5)
    (found,) = texts(model, [(prompt, draw)])
    tokens = list(prompt)
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[:, -1]
        seed, place = torch.tensor([draw.seed]), torch.tensor([len(tokens)])
        tokens.append(int(sample(logits, seed, place, temperature=draw.temperature, top_p=draw.top_p)))
    assert found == tuple(tokens[len(prompt) :])


def generated(model: PreTrainedModel, requests: list[Request]) -> list[tuple[int, ...]]:
    """The result of `generate` for the same requests in one batch."""
    width = max(len(tokens) for tokens, _ in requests)
    ids = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens, _ in requests])
    mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens, _ in requests])
    found = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=-1,
        pad_token_id=0,
        logits_processor=[SeededDraws([draw for _, draw in requests], mask)],
    )
    return [tuple(row[width:].tolist()) for row in found]


def test_k12_generate_draws_what_a_server_draws(model: PreTrainedModel) -> None:
    """A request has one text: in a padded batch of `generate`, alone there, and among others in continuous batching."""
    source = random.Random(4)
    requests: list[Request] = [
        (prompt_of(source, length), Draw(temperature, top_p, length))
        for length, temperature, top_p in [(20, 0.9, 0.95), (5, 1.5, 1.0), (33, 0.0, 1.0), (20, 1.0, 0.5)]
    ]
    found = generated(model, requests)
    assert found == texts(model, requests)
    assert found == [text for request in requests for text in generated(model, [request])]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("draws", "mask", "problem"),
    [
        ([Draw()], [[1, 1], [1, 1]], "1 draws for 2 rows; pass one draw for each row"),
        ([Draw()], [[1, 0]], "ends in padding; pad with"),
        ([Draw(-1.0)], [[1, 1]], "temperature is -1.0"),
    ],
    ids=["rows", "padding", "value"],
)
def test_k12_draws_that_do_not_fit_a_batch_are_refused(draws: list[Draw], mask: list[list[int]], problem: str) -> None:
    """Draws that don't fit are refused before anything is generated."""
    with pytest.raises(UnsupportedInput, match=problem):
        SeededDraws(draws, torch.tensor(mask))


def test_k12_draws_of_another_batch_are_refused() -> None:
    """Beams and a second batch have another number of rows."""
    processor = SeededDraws([Draw(1.0)], torch.tensor([[1, 1]]))
    with pytest.raises(UnsupportedInput, match="2 rows of scores for 1 draws"):
        processor(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 8))


def test_k12_seeds_give_other_draws_and_greedy_has_none(model: PreTrainedModel) -> None:
    """Ten seeds give many texts; without a temperature a request is greedy, whatever its seed and neighbours."""
    prompt = prompt_of(random.Random(2), 10)
    drawn = texts(model, [(prompt, Draw(1.0, 1.0, seed)) for seed in range(10)])
    assert len(set(drawn)) > 5
    greedy = texts(model, [(prompt, Draw(seed=1)), (prompt, Draw(2.0, 1.0, 1)), (prompt, Draw(seed=2))])
    assert greedy[0] == greedy[2] == texts(model, [(prompt, Draw())])[0]


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (Draw(-0.1), r"temperature is -0.1; pass a number from 0 to"),
        (Draw(float("nan")), "temperature is nan"),
        (Draw(1.0, 1.5), "top_p is 1.5; pass a number from 0 to 1"),
        (Draw(1.0, 1.0, 2**63), "seed is 9223372036854775808"),
        (Draw("1"), "'temperature'.* has type str, expected float"),  # type: ignore[arg-type]
    ],
    ids=["negative", "nan", "top_p", "seed", "type"],
)
def test_k12_a_value_out_of_range_fails_its_request_alone(draw: Draw, problem: str) -> None:
    """The error gives the name and a valid value; a request beside it is answered."""
    model, prompt = tiny_model(KINDS[0]), [5, 6, 7]
    with enable(model):
        bad, good = answers(model, [(prompt, draw), (prompt, Draw(1.0, 1.0, 3))])
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(bad.error)
    assert (good.error, len(good.generated_tokens)) == (None, NEW_TOKENS)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"do_sample": True}, "do_sample draws from the whole batch's generator"),
        ({"return_logprobs": True}, "return_logprobs"),
        ({"use_async_batching": True}, "asynchronous batching"),
    ],
    ids=["do_sample", "logprobs", "asynchronous"],
)
def test_k12_a_manager_that_cannot_be_seeded_is_refused(options: dict[str, Any], problem: str) -> None:
    """Such a manager is refused before it serves anything, with the reason."""
    model = tiny_model(KINDS[0])
    with enable(model), pytest.raises(UnsupportedInput, match=problem):
        seeded(manager_of(model, **options))


def test_k12_a_running_manager_is_refused() -> None:
    """The first requests of a running manager would have been greedy."""
    model = tiny_model(KINDS[0])
    with enable(model):
        manager = manager_of(model)
        manager.start()
        try:
            with pytest.raises(UnsupportedInput, match="it runs already"):
                seeded(manager)
        finally:
            manager.stop(block=True, timeout=WAIT_S)
