"""The demonstration counts answers by their bits, and fails if ours differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanreplay_kernels import demo
from spanreplay_kernels.demo import KINDS, Answer, answers, crowd_of, distinct_so_far, main, tiny_model
from spanreplay_kernels.engines.transformers import enable

SMALL = ["--copies", "8", "--neighbours", "8", "--new-tokens", "8"]
"""Enough that the text changes on every processor; with 4 requests it did not on each."""


def test_k11_answers_differ_by_a_bit_of_a_probability() -> None:
    """The same tokens with another probability are another answer."""
    one, other = Answer((1, 2), (-0.5, -0.25)), Answer((1, 2), (-0.5, -0.25000003))
    assert distinct_so_far([one, one, other, one]) == [1, 1, 2, 2]


def test_k11_demonstration_counts_one_answer_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both kinds of model give a picture and succeed; torch's kernels change the text, ours not a bit."""
    picture = tmp_path / "curves.svg"
    assert main([*SMALL, "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" 9 identical")[0].split() for line in lines[:4]] == [
        ["dense", "stock"], ["dense", "spanreplay"],
        ["mixture", "of", "experts", "stock"], ["mixture", "of", "experts", "spanreplay"],
    ]  # fmt: skip
    assert all("distinct answers: 1 (texts: 1); " in line for line in lines[1:4:2])
    texts = [int(line.split("texts: ")[1].split(")")[0]) for line in lines[:4]]
    assert texts[0] > 1, lines
    assert texts[2] > 1, lines
    assert picture.read_text().count("distinct answers so far") == 1


@pytest.mark.slow
def test_k8_a_thousand_identical_requests_have_one_answer() -> None:
    """Among 200 random requests, under continuous batching, it is one bitwise; torch's kernels give several."""
    wanted, crowd = crowd_of(1000, 200)
    model = tiny_model(KINDS[0])
    with enable(model):
        ours = answers(model, crowd, wanted, new_tokens=4, batch_tokens=512, blocks=128)
    stock = answers(model, crowd, wanted, new_tokens=4, batch_tokens=512, blocks=128)
    assert (len(ours), len(set(ours))) == (1000, 1)
    assert (len(stock), len(set(stock)) > 1) == (1000, True)


def test_k11_demonstration_fails_where_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: two different answers of ours are a failure."""
    found = iter(Answer((n,), (0.0,)) for n in range(100))
    monkeypatch.setattr(demo, "answers", lambda *_args, **_options: [next(found)])
    assert main(SMALL) == 1
