"""Activation quantisers against slow versions of their formulas."""

import pytest
import torch
from torch import nn

from slb_autotune.errors import ConfigError
from slb_autotune.quant import BiRealSign, DoReFa, Pact
from slb_autotune.quant.activations import activation_quantizer

X = torch.tensor([-2.0, -0.6, -0.2, 0.0, 0.1, 0.31, 0.49, 0.51, 0.8, 1.0, 1.2, 9.0, 12.0])


def gradient(quantiser: torch.nn.Module) -> torch.Tensor:
    x = X.clone().requires_grad_()
    (quantiser(x) * torch.arange(1.0, len(X) + 1)).sum().backward()
    return x.grad / torch.arange(1.0, len(X) + 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_dorefa(bits: int) -> None:
    n = 2**bits - 1
    expected = [round(n * min(max(x, 0.0), 1.0)) / n for x in X.tolist()]
    assert DoReFa(bits)(X).tolist() == pytest.approx(expected)
    assert gradient(DoReFa(bits)).tolist() == [float(0 <= x <= 1) for x in X.tolist()]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_pact(bits: int) -> None:
    quantiser = Pact(bits)
    nn.init.constant_(quantiser.alpha, 1.1)
    n, alpha = 2**bits - 1, float(quantiser.alpha.detach())
    expected = [round(n * min(max(x, 0.0), alpha) / alpha) * alpha / n for x in X.tolist()]
    assert quantiser(X).tolist() == pytest.approx(expected)
    assert gradient(quantiser).tolist() == [float(0 <= x < alpha) for x in X.tolist()]
    weights = range(1, len(X) + 1)
    above = sum(w for w, x in zip(weights, X.tolist(), strict=True) if x >= alpha)
    assert float(quantiser.alpha.grad) == pytest.approx(above)


def test_pact_starts_at_ten() -> None:
    assert float(Pact(2).alpha) == 10.0
    assert float(Pact(1).alpha) == 2.0


def test_sign_with_the_bi_real_gradient() -> None:
    assert BiRealSign()(X).tolist() == [1.0 if x >= 0 else -1.0 for x in X.tolist()]
    expected = [max(0.0, 2 - 2 * abs(x)) for x in X.tolist()]
    assert gradient(BiRealSign()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dorefa", "pact"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    quantiser = activation_quantizer(name, 2).to(dtype)
    assert quantiser(X.to(dtype)).dtype == dtype


def test_32_bits_means_none() -> None:
    assert activation_quantizer("dorefa", 32) is None


def test_sign_has_one_bit() -> None:
    with pytest.raises(ConfigError, match="sign has 1 bit; got 2"):
        BiRealSign(2)
    with pytest.raises(ConfigError, match="activation_bits of sign must be one of"):
        activation_quantizer("sign", 2)
