"""W_c and its gradient, and the codes of W_q, from A: the arithmetic under SLB's layers.

    W_c       = sum_i P_i v_i,  P_i = softmax_i(T A)        (eq:wc, eq_prob)
    dW_c/dA_i = T P_i (v_i - W_c)

For 1 bit W_c = tanh(T (A_2 - A_1) / 2). P of more bits has as many entries as A: a large one is
not kept between the passes, and the backward pass computes it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_SMALL = 2**18  # elements of A up to which P is kept: 1 MB, and fewer operations
# A CPU handles more elements in blocks that stay in the cache; others want one large operation.
_LARGE, _BLOCK = 2**20, 2**18


def working_dtype(A: Tensor) -> torch.dtype:
    """Half precision cannot represent T times A; float32 is used in its place."""
    return torch.float32 if A.dtype in (torch.float16, torch.bfloat16) else A.dtype


def _powers(A: Tensor, t: Tensor) -> Tensor:
    """E_i = 2**(t (A_i - max A)): with t = T log2(e) a softmax before its division, but faster."""
    A = A.to(t.dtype)
    return torch.addcmul(A.amax(0) * -t, A, t).exp2_()


class _ExpectedWeight(Function):
    """W_c = sum_i P_i v_i of an (m, n) matrix A, for a column V and t = T log2(e)."""

    @staticmethod
    def forward(A: Tensor, V: Tensor, t: Tensor) -> Tensor:
        def expectation(a: Tensor) -> Tensor:
            E = _powers(a, t)
            total = E.sum(0)
            # No matrix product: autocast and TF32 would round its factors.
            return E.mul_(V).sum(0).div_(total)

        return _in_blocks(expectation, A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        A, V, t, W = ctx.saved_tensors

        def gradient(a: Tensor, w: Tensor, g: Tensor) -> Tensor:
            E = _powers(a, t)
            k = g / E.sum(0)
            return torch.addcmul(w * -k, V, k).mul_(E).to(a.dtype)

        return _in_blocks(gradient, A, W, grads[0] * (t * math.log(2))), None, None


def _in_blocks(function: Callable[..., Tensor], A: Tensor, *others: Tensor) -> Tensor:
    """function(A, *others), on a CPU by blocks of columns where A is large."""
    if A.numel() <= _LARGE or A.device.type != "cpu" or torch.compiler.is_compiling():
        return function(A, *others)
    width = _BLOCK // A.shape[0]
    for start in range(0, A.shape[1], width):
        columns = slice(start, start + width)
        part = function(*(tensor[..., columns] for tensor in (A, *others)))
        if start == 0:
            whole = part.new_empty(*part.shape[:-1], A.shape[1])
        whole[..., columns] = part
    return whole


def expected_weight(A: Tensor, values: Tensor, T: Tensor | float) -> Tensor:
    """W_c = sum_i softmax_i(T A) v_i over the first dimension of A, in A's precision."""
    T = torch.as_tensor(T, dtype=working_dtype(A), device=A.device)
    if A.shape[0] == 2:
        low, high = A.to(T.dtype).unbind()
        return torch.tanh((high - low) * (T / 2)).to(A.dtype)
    V = values.to(T.dtype).unsqueeze(1)
    if A.numel() <= _SMALL:
        # A copy of T: the layer may be given another before the backward pass.
        P = torch.softmax(A.flatten(1).to(T.dtype) * T.clone(), 0)
        return (P * V).sum(0).view(A.shape[1:]).to(A.dtype)
    t = T * math.log2(math.e)
    W: Tensor = _ExpectedWeight.apply(A.flatten(1), V, t)  # type: ignore[no-untyped-call]
    return W.view(A.shape[1:]).to(A.dtype)


def argmax_codes(A: Tensor) -> Tensor:
    """k = argmax_i A_i as uint8; a tie takes the first."""
    if A.shape[0] == 2:
        return (A[1] > A[0]).to(torch.uint8)
    # `max` documents the same choice among ties as `argmax`, and is several times faster on a CPU.
    return A.max(0).indices.to(torch.uint8)
