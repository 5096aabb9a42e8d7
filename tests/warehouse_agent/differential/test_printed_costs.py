"""The printed cost model gives the printed numbers."""

import math

import pytest

from tests.reference.snapshot_costs import Files, good_days, intermediate, io

MB = 1 << 20
FIGURE_8 = {
    "SM": (81_920, 327_680),
    "SMC1": (51_336, 205_346),
    "SMC2": (40_833, 163_333),
    "PH": (65_536, 262_144),
    "PHC1": (18_568, 205_346),
    "PHC2": (19_660, 156_779),
    "W": (32_768, 131_072),
}


SPACE_8 = {
    "SM": (16_384, 65_536),
    "SMC1": (16_384, 65_536),
    "SMC2": (1_639, 6_554),
    "PH": (16_384, 65_536),
    "PHC1": (16_384, 65_536),
    "PHC2": (1_639, 6_554),
    "W": (0, 0),
}


def test_figure_2_a_file_of_256_mb_misses_a_change_in_some_2430_days():
    """The paper rounds 2^-32 to 2.3e-10."""
    assert good_days(256 * MB, 32) == pytest.approx(2430, rel=0.015)
    for bits in (24, 32, 48, 64):
        days = [good_days(size * MB, bits) for size in (256, 1024, 10_240)]
        assert days[0] > days[1] > days[2]
        assert good_days(256 * MB, bits + 8) > 50 * days[0]
    assert good_days(10_240 * MB, 128) > 1e30


@pytest.mark.parametrize("algorithm", FIGURE_8)
def test_figure_8(algorithm):
    found = tuple(int(io(algorithm, Files(size * MB))) for size in (256, 1024))
    assert found == FIGURE_8[algorithm]
    space = tuple(math.ceil(intermediate(algorithm, Files(size * MB))) for size in (256, 1024))
    assert space == SPACE_8[algorithm]


def test_figure_9_the_buckets_fit_in_memory_below_480_and_320_mb():
    for algorithm, limit in (("PHC1", 480), ("PHC2", 320)):
        below, above = (io(algorithm, Files((limit + d) * MB)) for d in (-1, 1))
        assert below < io("W", Files(limit * MB)) < above


def test_figure_10_a_low_factor_makes_compression_worse_than_none():
    def cost(algorithm, u):
        return io(algorithm, Files(1024 * MB, u_kb=u, u_kbp=u))

    assert cost("SMC1", 1) == cost("SM", 1)
    assert cost("SMC1", 1) > cost("PH", 1)
    assert cost("SMC1", 10) - cost("SMC1", 100) < 0.1 * cost("SMC1", 10)  # bounded benefit


def test_figure_11_pointers_pay_below_some_2_percent_of_changes():
    def cost(algorithm, changed):
        return io(algorithm, Files(1024 * MB, changed=changed))

    for one, two in (("PHC2", "PHC1"), ("SMC2", "SMC1")):
        assert cost(one, 0.015) < cost(two, 0.015)
        assert cost(one, 0.018) > cost(two, 0.018)
