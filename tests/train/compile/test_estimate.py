"""Estimate of a program: matmuls, loops, attention kernels and collectives."""

from pathlib import Path

import pytest

from train.compile import slices
from train.compile.estimate import KERNEL_SHARE, Transfer, estimate

SLICE = slices.parse("v5e-16")

PROGRAM = Path(__file__).with_name("program.hlo").read_text()
"""A small program in the text format that libtpu prints after compilation: a loop of ten matmuls,
two collectives and a transfer to another slice."""


@pytest.fixture(scope="module")
def costs():
    return estimate(PROGRAM, SLICE, slices=2)


def test_matmuls_count_as_often_as_their_loop_runs(costs):
    assert costs.matmul_flops == 10 * 2 * 256 * 512 * 128
    assert costs.matmul_seconds == 10 * 600 / SLICE.chip.clock


def test_collectives_are_counted_by_kind_with_their_bytes(costs):
    gather = costs.collectives[Transfer("all-gather", "ICI", False, False)]
    reduce = costs.collectives[Transfer("all-reduce", "ICI", False, False)]
    assert (gather.count, gather.bytes) == (1, 2048 * 128 * 2)
    assert (reduce.count, reduce.bytes) == (1, 1024 * 4)
    # A corner chip has two links, and a group of all 16 chips uses both. An all-reduce moves each
    # byte twice.
    assert reduce.seconds == pytest.approx(2 * 4096 * 15 / 16 / (2 * SLICE.chip.link_bandwidth))
    assert costs.exposed == gather.seconds + reduce.seconds


def test_a_transfer_between_slices_overlaps_with_computation(costs):
    sent = costs.collectives[Transfer("all-reduce", "DCN", True, False)]
    assert sent.seconds == pytest.approx(2 * 4096 / 2 / SLICE.chip.dcn_bandwidth)
    computing = costs.matmul_seconds + costs.other_low
    assert costs.low == pytest.approx(max(computing, sent.seconds) + costs.exposed)


def test_other_instructions_have_a_low_and_a_high_estimate(costs):
    assert costs.other_low == pytest.approx(2 * 4096 / SLICE.chip.memory_bandwidth)
    assert costs.other_high == 1500 / SLICE.chip.clock
    assert costs.low < costs.high


KERNEL = (
    "ENTRY %main (q: bf16[2,8,1024,128]) -> bf16[2,8,1024,128] {{\n"
    "  %q = bf16[2,8,1024,128]{{3,2,1,0}} parameter(0)\n"
    "  ROOT %splash_mha_{name}.1 = {result} custom-call(%q, %q, %q), "
    'custom_call_target="tpu_custom_call", '
    'metadata={{op_name="{{\\"block_q{suffix}\\": 512, \\"block_kv{suffix}\\": 512}}"}}\n'
    "}}\n"
)
ARRAY = "bf16[2,8,1024,128]{3,2,1,0}"


@pytest.mark.parametrize(
    ("name", "suffix", "result", "matmuls"),
    [
        ("fwd_residuals", "", ARRAY, 2),
        ("dq_no_residuals", "_dq", ARRAY, 3),
        ("dkv_no_residuals", "_dkv", f"({ARRAY}, {ARRAY})", 4),
        ("dkv_no_residuals", "_dkv", f"({ARRAY}, {ARRAY}, {ARRAY})", 5),
    ],
)
def test_an_attention_kernel_does_not_count_masked_blocks(name, suffix, result, matmuls):
    costs = estimate(KERNEL.format(name=name, suffix=suffix, result=result), SLICE)
    # The causal mask hides one of the 2 x 2 blocks, the one above the diagonal.
    visible = 3 * 512 * 512
    assert costs.kernel_flops == matmuls * 2 * 2 * 8 * visible * 128
    peak = SLICE.chip.peak_flops
    assert costs.kernel_seconds == costs.kernel_flops / (KERNEL_SHARE * peak)


def test_a_loop_of_unknown_length_is_counted_once_and_reported():
    unknown = PROGRAM.replace(
        "%end = s32[]{:T(128)} constant(10)", "%end = s32[]{:T(128)} copy(%i.1)"
    )
    costs = estimate(unknown, SLICE)
    assert costs.matmul_flops == 2 * 256 * 512 * 128
    assert costs.unknown_loops == 1
