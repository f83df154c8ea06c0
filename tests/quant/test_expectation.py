"""W_c, its gradient and the codes of W_q, against softmax, finite differences and argmax."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.quant import expectation as module
from slb_autotune.quant.expectation import (
    argmax_codes,
    expected_weight,
    expected_weights,
    value_set,
)

ALL_BITS = [1, 2, 3, 4, 8]


@pytest.mark.parametrize("bits", ALL_BITS)
def test_values_are_uniform_on_minus_one_to_one(bits: int) -> None:
    values = value_set(bits)
    assert len(values) == 2**bits
    assert values[0] == -1
    assert values[-1] == 1
    steps = values.diff()
    assert torch.allclose(steps, torch.full_like(steps, 2 / (2**bits - 1)), atol=1e-6)


def test_values_of_the_paper() -> None:
    assert value_set(1).tolist() == [-1, 1]
    assert value_set(2).tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert float(value_set(4)[1] - value_set(4)[0]) == pytest.approx(2 / 15)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_gradient_is_exact(bits: int) -> None:
    A = torch.randn(2**bits, 3, 4, dtype=torch.float64, requires_grad=True)
    values = value_set(bits).double()
    assert torch.autograd.gradcheck(lambda a: expected_weight(a, values, 1.7), (A,))


@pytest.mark.parametrize("bits", ALL_BITS)
def test_gradient_equals_autograd_through_softmax(bits: int) -> None:
    A = torch.randn(2**bits, 5, 7, requires_grad=True)
    g = torch.randn(5, 7)
    values = value_set(bits)
    expected_weight(A, values, 2.5).backward(g)
    ours, A.grad = A.grad, None
    (torch.softmax(2.5 * A, 0) * values.view(-1, 1, 1)).sum(0).backward(g)
    assert torch.allclose(ours, A.grad, atol=1e-6)


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(8, 10, 10, requires_grad=True)
    values, g = value_set(3), torch.randn(10, 10)

    def everything() -> list[torch.Tensor]:
        A.grad = None
        W = expected_weight(A, values, 3.0)
        W.backward(g)
        return [W.detach(), A.grad, argmax_codes(A)]

    whole = everything()
    monkeypatch.setattr(module, "_CPU_BLOCK", 8 * 7)
    for one, other in zip(whole, everything(), strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-6)


def test_no_probabilities_are_saved() -> None:
    logits = [torch.randn(16, n, requires_grad=True) for n in (40, 24)]
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        expected_weights(logits, value_set(4), 1.0)
    others = [t for t in saved if all(t.data_ptr() != A.data_ptr() for A in logits)]
    assert sum(t.numel() for t in others) <= 16 + 3 * 64


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_gradient_of_several_is_exact(bits: int) -> None:
    shapes = [(3, 4), (2, 1, 2, 2), (5,)]
    logits = [torch.randn(2**bits, *s, dtype=torch.float64, requires_grad=True) for s in shapes]
    values = value_set(bits).double()
    assert torch.autograd.gradcheck(lambda *A: expected_weights(A, values, 1.7), logits)


def test_small_neighbours_are_worked_on_side_by_side() -> None:
    logits = [torch.zeros(4, n) for n in (5, 9, 10, 3, 2, 30, 8)]
    widths = [[A.shape[1] for A in layers] for layers in module._neighbours(logits, 40)]
    assert widths == [[5, 9], [10], [3, 2], [30], [8]]


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 3, 4]), st.floats(1e-3, 1e5))
@settings(max_examples=40, deadline=None)
def test_weights_stay_in_range_and_W_q_in_V(seed: int, bits: int, T: float) -> None:
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


class TestShares:
    """On a CPU every thread works on whole columns; the numbers do not depend on how many."""

    @pytest.fixture(params=[1, 2, 3])
    def threads(self, request: pytest.FixtureRequest) -> Iterator[int]:
        before = torch.get_num_threads()
        torch.set_num_threads(request.param)
        yield request.param
        torch.set_num_threads(before)

    # 6 * 4096 weights can be shared by two and by three threads, 4097 * 5 by neither.
    @pytest.mark.parametrize("weights", [6 * 4096, 4097 * 5])
    def test_W_c_and_its_gradient_are_those_of_softmax(self, threads: int, weights: int) -> None:
        A = torch.randn(16, weights, requires_grad=True)
        g, values = torch.randn(weights), value_set(4)
        ours = expected_weight(A, values, 5.0)
        ours.backward(g)
        exact = A.detach().double().requires_grad_()
        W = (torch.softmax(5.0 * exact, 0) * values.double().view(-1, 1)).sum(0)
        W.backward(g.double())
        assert torch.allclose(ours.double(), W, atol=1e-6)
        assert torch.allclose(A.grad.double(), exact.grad, atol=1e-5)

    def test_a_share_for_each_thread_where_there_is_work_for_all(self, threads: int) -> None:
        large, other = torch.randn(16, 6 * 4096), torch.arange(6 * 4096)
        shares, parts = module._shared(large, other)
        assert shares.shape == (threads, 16, 6 * 4096 // threads)
        width = shares.shape[2]
        for k in range(threads):
            columns = slice(k * width, (k + 1) * width)
            assert torch.equal(shares[k], large[:, columns])
            assert torch.equal(parts[k], other[columns])
        assert len(next(module._shared(torch.randn(16, 30)))) == 1


def test_the_way_of_an_accelerator_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = [torch.randn(16, n, requires_grad=True) for n in (6 * 4096, 30, 50)]
    grads = [torch.randn(A.shape[1]) for A in logits]

    def everything() -> list[torch.Tensor]:
        weights = expected_weights(logits, value_set(4), 5.0)
        return [*weights, *torch.autograd.grad(weights, logits, grads)]

    ours = everything()
    monkeypatch.setattr(module, "_on_cpu", lambda _: False)
    for one, other in zip(ours, everything(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
