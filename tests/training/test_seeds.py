"""Seeds: each part matters, and fewer bits are the top bits of more."""

import pytest

from slb_autotune.training.seeds import derive_seed


def test_seeds_are_fixed_for_ever() -> None:
    # SHA-256 of "0/epoch/3", its first 63 bits: a run recorded today is repeated by these.
    assert derive_seed(0, "epoch", 3) == 251_044_065_527_859_115
    assert derive_seed(0, "epoch", 3, bits=32) == 251_044_065_527_859_115 >> 31


@pytest.mark.parametrize("bits", [1, 8, 32, 62, 64])
def test_fewer_bits_are_the_top_bits_of_more(bits: int) -> None:
    for part in range(50):
        seed = derive_seed(part, "top", bits=bits)
        assert 0 <= seed < 2**bits
        assert seed == derive_seed(part, "top", bits=64) >> (64 - bits)


def test_a_torch_generator_takes_the_default() -> None:
    assert all(0 <= derive_seed("default", part) < 2**63 for part in range(100))


def test_every_part_and_the_order_of_parts_matters() -> None:
    parts = [
        (0,),
        (1,),
        (0, "epoch"),
        (0, "batches"),
        (0, "epoch", 0),
        (0, "epoch", 1),
        (1, "epoch", 0),
        ("epoch", 0, 0),
        (0, "epoch", 0, 0),
    ]
    assert len({derive_seed(*each) for each in parts}) == len(parts)
    assert derive_seed(7, "epoch", 2) == derive_seed(7, "epoch", 2)
