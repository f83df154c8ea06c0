"""W_c, its gradient and the codes of W_q, against numpy, softmax and finite differences."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.quant import expectation
from slb_autotune.quant.expectation import argmax_codes, expected_weight
from slb_autotune.quant.values import value_set

ALL_BITS = [1, 2, 3, 4, 8]


@pytest.fixture(
    scope="module", autouse=True, params=[expectation._SMALL, 0], ids=["kept", "again"]
)
def size(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds for small layers, whose P is kept, and for large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expectation, "_SMALL", request.param)
        yield


def slow_weight(A: np.ndarray, T: float) -> np.ndarray:
    """eq_prob and eq:wc in numpy's float64."""
    m = len(A)
    values = [-1 + 2 * i / (m - 1) for i in range(m)]
    powers = np.exp(T * (A - A.max(0)))
    return sum(v * p for v, p in zip(values, powers / powers.sum(0), strict=True))


def softmax_weight(A: torch.Tensor, T: float) -> torch.Tensor:
    """The same as a user of torch would write it; autograd finds its gradient."""
    values = torch.linspace(-1, 1, len(A), dtype=A.dtype)
    return torch.tensordot(values, torch.softmax(T * A, 0), 1)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("T", [0.01, 1.0, 30.0, 1e5])
def test_W_c_in_float64_is_that_of_numpy(bits: int, T: float) -> None:
    A = torch.randn(2**bits, 3, 4, 5, dtype=torch.float64)
    W = expected_weight(A, value_set(bits, torch.float64), T)
    assert np.abs(W.numpy() - slow_weight(A.numpy(), T)).max() < 1e-12


@pytest.mark.parametrize("bits", ALL_BITS)
def test_gradient_is_exact(bits: int) -> None:
    A = torch.randn(2**bits, 3, 4, dtype=torch.float64, requires_grad=True)
    values = value_set(bits, torch.float64)
    assert torch.autograd.gradcheck(lambda a: expected_weight(a, values, 1.7), (A,))


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_the_gradient_can_be_differentiated_again(bits: int) -> None:
    A = torch.randn(2**bits, 3, dtype=torch.float64, requires_grad=True)
    values = value_set(bits, torch.float64)
    assert torch.autograd.gradgradcheck(lambda a: expected_weight(a, values, 1.7), (A,))


@pytest.mark.parametrize("bits", ALL_BITS)
def test_gradient_is_that_of_autograd_through_softmax(bits: int) -> None:
    A = torch.randn(2**bits, 5, 7, requires_grad=True)
    g = torch.randn(5, 7)
    (ours,) = torch.autograd.grad(expected_weight(A, value_set(bits), 2.5), A, g)
    (theirs,) = torch.autograd.grad(softmax_weight(A, 2.5), A, g)
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_layer_of_many_blocks_is_like_softmax(bits: int) -> None:
    weights = 2**21 // 2**bits + 17  # more than a CPU handles at once
    A = torch.randn(2**bits, weights, requires_grad=True)
    g = torch.randn(weights)
    ours = expected_weight(A, value_set(bits), 3.0)
    theirs = softmax_weight(A, 3.0)
    assert torch.allclose(ours, theirs, atol=1e-6)
    (grad,) = torch.autograd.grad(ours, A, g)
    (expected,) = torch.autograd.grad(theirs, A, g)
    assert torch.allclose(grad, expected, atol=2e-6)


def test_a_layer_of_many_blocks_can_be_differentiated_twice() -> None:
    A = torch.randn(4, 2**18 + 17, dtype=torch.float64, requires_grad=True)
    second = []
    for W in (expected_weight(A, value_set(2, A.dtype), 3.0), softmax_weight(A, 3.0)):
        (first,) = torch.autograd.grad(W.square().sum(), A, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), A)[0])
    assert torch.allclose(*second)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(bits: int, dtype: torch.dtype) -> None:
    A = torch.randn(2**bits, 40).to(dtype)
    half, full = A.clone().requires_grad_(), A.float().requires_grad_()
    g = torch.randn(40).to(dtype)
    T = 1e5  # not a number of float16
    W = expected_weight(half, value_set(bits, dtype), T)
    reference = expected_weight(full, value_set(bits, dtype).float(), T)
    assert torch.equal(W, reference.to(dtype))
    (grad,) = torch.autograd.grad(W, half, g)
    (expected,) = torch.autograd.grad(reference, full, g.float())
    assert torch.equal(grad, expected.to(dtype))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_no_probabilities_of_a_large_layer_are_saved(bits: int) -> None:
    weights = 2**18 // 2**bits + 1
    A = torch.randn(2**bits, weights, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        expected_weight(A, value_set(bits), 1.0)
    others = [t for t in saved if t.data_ptr() != A.data_ptr()]
    assert sum(t.numel() for t in others) <= 2**bits + weights + 1


@pytest.mark.parametrize("bits", [1, 2])
def test_another_T_before_the_backward_pass_does_no_harm(bits: int) -> None:
    A = torch.randn(2**bits, 6, requires_grad=True)
    T = torch.tensor(2.0)
    W = expected_weight(A, value_set(bits), T)
    T.fill_(50.0)
    (grad,) = torch.autograd.grad(W.sum(), A)
    (expected,) = torch.autograd.grad(softmax_weight(A, 2.0).sum(), A)
    assert torch.allclose(grad, expected, atol=1e-6)


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 3, 4]), st.floats(1e-3, 1e5))
@settings(max_examples=40, deadline=None)
def test_weights_stay_in_range_and_codes_are_argmax(seed: int, bits: int, T: float) -> None:
    A = torch.randn(2**bits, 9, generator=torch.Generator().manual_seed(seed))
    W_c = expected_weight(A, value_set(bits), T)
    assert W_c.isfinite().all()
    assert (W_c.abs() <= 1 + 1e-6).all()
    assert argmax_codes(A).tolist() == A.argmax(0).tolist()


@pytest.mark.parametrize("bits", ALL_BITS)
def test_a_tie_takes_the_first_value(bits: int) -> None:
    A = torch.zeros(2**bits, 3)
    A[-1, 1] = 1.0
    A[1:, 2] = 5.0
    assert argmax_codes(A).tolist() == [0, 2**bits - 1, 1]
