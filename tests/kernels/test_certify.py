"""Certificates state what was tried, detect kernels that vary, and never pass without a detected control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spanreplay_kernels import subjects
from spanreplay_kernels.__main__ import main
from spanreplay_kernels.errors import NotInvariant, UnsupportedInput
from spanreplay_kernels.plans.arch import CPU
from spanreplay_kernels.plans.plan import hash_plans, plan_matmul
from spanreplay_kernels.proof import certify
from spanreplay_kernels.proof.certify import EVERY_OFFSET, FULL, Extent, Verdict, require

SMALL = Extent((1, 2, 3, 16, 17), 3, 2)


def make(op: str = "matmul", shape: str = "24x96", dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A small certificate for the CPU."""
    return certify.certify(op, shape, dtype, "cpu", SMALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("matmul", "24x96"),
        ("grouped_mm", "3x24x96"),
        ("scaled_mm", "32x192"),
        ("scaled_mm_blocks", "32x192"),
        ("experts", "6x24x96x2"),
        ("route", "96x4"),
        ("attention", "4x2x16x96"),
        ("rms_norm", "96"),
        ("softmax", "96"),
        ("log_softmax", "96"),
        ("gather_logprob", "96"),
        ("mean", "96"),
        ("silu_mul", "96"),
        ("rope", "3x32"),
        ("sample", "96"),
    ],
    ids=lambda value: str(value),
)
def test_k9_operations_are_certified_on_the_cpu(op: str, shape: str, dtype: torch.dtype) -> None:
    """Every size, place, layout and hostile neighbour is tried: no difference, within the limit of ulps.

    It passes if the same trials caught a kernel that varies; in half precision most of these few elements round alike.
    """
    found = make(op, shape, dtype)
    assert (found["differences"], found["first_differences"]) == (0, [])
    limit = found["accuracy"]["ulps_limit"]
    assert limit is None or found["accuracy"]["ulps_max"] <= limit
    assert found["controls"]["planted"]["caught"] > 0
    is_caught = any(each["caught"] for name, each in found["controls"].items() if name != "planted")
    assert found["verdict"] == ("passed" if is_caught else "inconclusive")
    assert is_caught or dtype is not torch.float32


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("matmul", "256x1024"), ("rms_norm", "4096"), ("softmax", "4096"), ("silu_mul", "1024"), ("rope", "4x64"),
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_k9_what_varies_is_caught_in_half_precision(op: str, shape: str) -> None:
    """Rounding to bf16 hides most effects of another order, but not all, so the certificates are meaningful."""
    found = certify.certify(op, shape, torch.bfloat16, "cpu", certify.QUICK)
    assert found["verdict"] == "passed", found["control"]


def test_k5_attention_of_a_prefill_is_a_form_of_decode() -> None:
    """The trial is meaningful: rows see various numbers of keys, some more than such a prefill has; and it can fail."""
    subject = subjects.find("attention", "4x2x16x96")
    generator = torch.Generator().manual_seed(0)
    x, k, v = (torch.randn(shape, generator=generator) for shape in ((20, 64), (96, 2, 16), (96, 2, 16)))
    ((name, form),) = subject.forms
    assert torch.equal(form(x, k, v), subject.ours(x, k, v))
    other = subject._replace(forms=((name, lambda *operands: form(*operands) + 1e-3),))
    assert certify._layout_differences(other, x, (k, v)) == [name]
    # Keys that most rows do not see change few of them
    changed = (subject.ours(x, k, torch.cat((v[:48], -v[48:]))) != subject.ours(x, k, v)).any(1)
    assert 3 < int(changed.sum()) < 17


def test_k9_certificate_names_all_that_it_holds_for() -> None:
    """A certificate states operation, shape, dtype, device, threads, versions, plan, its hash, and everything tried."""
    found = make()
    plan = plan_matmul(24, 96, "float32", CPU)
    assert (found["op"], found["shape"], found["dtype"], found["arch"]) == ("matmul", "24x96", "float32", "cpu")
    assert found["plan_hash"] == hash_plans(plan)
    assert found["threads"] == 2
    assert found["versions"]["torch"] == torch.__version__
    tried = found["tried"]
    # 30 places of one row, 3 of each of 4 sizes, 3 sizes around each of 2 hostile rows, another order, a repetition
    assert tried["trials"] == 30 + 4 * 3 + 2 * 3 + 2
    assert (tried["every_size_to"], tried["other_sizes"]) == (3, [16, 17])
    assert json.loads(json.dumps(found)) == found


def test_k9_stock_product_is_caught_in_the_same_run() -> None:
    """Negative control: torch's own product differs in the trials that ours passes."""
    found = make(shape="256x1024")
    assert found["controls"]["stock"]["caught"] > 0
    assert found["verdict"] == "passed"
    require(found)
    assert found["control"].startswith("torch's own kernel differed in")


def test_k9_kernel_that_sees_its_neighbours_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose sum depends on its batch is detected, and code that requires the certificate gets an error."""
    honest = subjects.find("matmul", "24x96")
    varies = honest._replace(ours=subjects.plant(honest.ours))
    monkeypatch.setattr(subjects, "find", lambda op, shape: varies)
    found = make()
    assert found["verdict"] == "failed"
    assert found["first_differences"][0].endswith("alone")
    with pytest.raises(
        NotInvariant, match=r"matmul 24x96 float32 on cpu.*: failed \(\d+ differences.*use another kernel"
    ):
        require(found)


def test_k9_inaccurate_kernel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is always the same but wrong does not pass."""
    honest = subjects.find("mean", "96")
    wrong = honest._replace(ours=lambda x: honest.ours(x) * 1.05)
    monkeypatch.setattr(subjects, "find", lambda op, shape: wrong)
    found = make("mean", "96", torch.bfloat16)
    assert (found["verdict"], found["differences"]) == ("failed", 0)
    assert found["accuracy"]["ulps_max"] > 1


def test_k9_product_in_tf32_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product whose operands lose 13 bits, as in TF32, is not an fp32 product."""
    honest = subjects.find("matmul", "24x512")

    def narrow(x: Tensor) -> Tensor:
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    wrong = honest._replace(ours=lambda x, w: honest.ours(narrow(x), narrow(w)))
    monkeypatch.setattr(subjects, "find", lambda op, shape: wrong)
    found = make("matmul", "24x512", torch.float32)
    assert (found["verdict"], found["differences"]) == ("failed", 0)
    monkeypatch.setattr(subjects, "find", lambda op, shape: honest)
    assert make("matmul", "24x512", torch.float32)["verdict"] == "passed"


def test_k9_certificate_without_a_caught_control_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that find nothing in a kernel that varies prove nothing, so they never give `passed`."""
    honest = subjects.find("matmul", "24x96")
    same = honest._replace(stock=honest.ours, exact=honest.stock, varies=None)
    monkeypatch.setattr(subjects, "find", lambda op, shape: same)
    found = make()
    assert found["verdict"] == Verdict.INCONCLUSIVE.value
    assert found["control"].startswith("the control found nothing in torch's own kernel, and a planted difference in ")
    with pytest.raises(NotInvariant, match=r"inconclusive \(0 differences.*the control found nothing"):
        require(found)


@pytest.mark.parametrize(("stock", "status"), [("ours", 3), ("planted", 0)])
def test_command_says_by_its_status_whether_it_is_a_proof(
    stock: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 0 for a pass, and 3 if the control found nothing."""
    honest = subjects.find("mean", "8")
    by = honest._replace(
        stock=subjects.plant(honest.ours) if stock == "planted" else honest.ours,
        varies=None,
        exact=lambda x: torch.mean(x, -1),
    )
    monkeypatch.setattr(subjects, "find", lambda op, shape: by)
    arguments = ["certify", "--op", "mean", "--shapes", "8", "--dtype", "fp32", "--device", "cpu", "--quick"]
    assert main(arguments) == status
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == ("passed" if status == 0 else "inconclusive")


def test_k9_a_kernel_that_counts_its_rows_is_a_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """If torch's own kernel does not vary, the certificate says so, and names the control that was caught instead."""
    honest = subjects.find("mean", "96")
    same = honest._replace(stock=honest.ours, exact=lambda x: torch.mean(x, -1))
    monkeypatch.setattr(subjects, "find", lambda op, shape: same)
    found = make("mean", "96")
    assert (found["verdict"], found["controls"]["stock"]["caught"]) == ("passed", 0)
    assert "nothing in torch's own kernel, and one that counts its rows differed in" in found["control"]


def test_k9_bits_are_compared_not_values() -> None:
    """NaN equals itself, and −0 differs from 0."""
    nan = torch.tensor([float("nan")])
    assert certify._is_same(nan, nan.clone())
    assert not certify._is_same(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_k9_full_extent_has_every_size_to_512() -> None:
    """A GPU is certified for 1 … 512 and around tile sizes up to 2048, at every place of one row."""
    assert FULL.sizes[:512] == tuple(range(1, 513))
    assert {1023, 1024, 1025, 2046, 2048} <= set(FULL.sizes)
    assert sum(1 for size, _ in certify._places(FULL) if size == 1) == FULL.rows


def test_k9_every_size_at_every_offset() -> None:
    """If requested, no place is left out: each row begins a part of each size that fits after it."""
    extent = Extent(tuple(range(1, 41)), None, 2)
    places = list(certify._places(extent))
    assert len(places) == len(set(places)) == sum(extent.rows - size + 1 for size in range(1, 41))
    found = certify.certify("matmul", "24x96", torch.float32, "cpu", extent)
    assert (found["differences"], found["verdict"]) == (0, "passed")
    assert found["tried"]["offsets"] == "every one of every size"
    assert found["tried"]["trials"] > len(places)
    assert EVERY_OFFSET.sizes == FULL.sizes


def test_command_writes_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has one certificate per shape, standard error one line per shape; the exit status is 0."""
    out = tmp_path / "certificates.json"
    shapes = ["256x1024", "1024x256"]
    command = ["certify", "--op", "matmul", "--shapes", *shapes, "--dtype", "fp32", "--device", "cpu", "--quick"]
    assert main([*command, "--out", str(out)]) == 0
    assert [each["shape"] for each in json.loads(out.read_text())] == shapes
    assert capsys.readouterr().err.count(": passed; torch's own kernel differed in ") == 2


def test_command_refuses_what_cannot_be_certified(capsys: pytest.CaptureFixture[str]) -> None:
    """A shape with another number of sizes, or an unknown command, is refused."""
    assert main(["certify", "--op", "matmul", "--shapes", "64", "--device", "cpu"]) == 2
    assert "shape '64' is none; write N x K as 4096x4096" in capsys.readouterr().err
    assert main(["certified"]) == 2
    assert "certify  try whether" in capsys.readouterr().err
    for op, shape, hint in (
        ("attention", "4x3x16x96", "write Hq x Hkv x D x L as 32x8x128x4096"),
        ("experts", "4x8x16x5", "top_k 5 is above 4 experts"),
        ("route", "4x5", "top_k 5 is above 4 experts"),
        ("rope", "4", "write H x D as 32x128"),
    ):
        with pytest.raises(UnsupportedInput, match=hint):
            subjects.find(op, shape)
    with pytest.raises(UnsupportedInput, match="conv2d: cannot be certified; use one of"):
        subjects.find("conv2d", "1")


def test_k7_groups_of_a_certificate_have_other_sizes_in_every_batch() -> None:
    """The trial is meaningful: every expert has rows, and a part of a batch has other groups than the whole."""
    subject = subjects.find("grouped_mm", "3x8x16")
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    w = torch.stack([torch.full((8, 16), float(e + 1)) for e in range(3)])
    assert subject.exact is not None
    experts = (subject.exact(x, w)[:, 0] / x.sum(1)).round().long()
    assert set(experts.tolist()) == {1, 2, 3}
    assert len({tuple(experts[:rows].bincount(minlength=4).tolist()) for rows in (10, 20, 40)}) == 3
    torch.testing.assert_close(subject.ours(x, w), subject.exact(x, w))


def test_planted_kernel_differs_by_one_bit_in_even_batches() -> None:
    """The control relies on this difference, in every dtype."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.ones(2, 3, dtype=dtype)

        def same(values: Tensor) -> Tensor:
            return values

        planted = subjects.plant(same)
        assert torch.equal(planted(x[:1]), x[:1])
        assert not torch.equal(planted(x), x)
