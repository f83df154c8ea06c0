"""MATLAB's `imresize` with its bicubic kernel, which super-resolution results are based on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KERNEL_WIDTH = 4.0


def imresize(image: Tensor, scale: float) -> Tensor:
    """Resize the last two dimensions by `scale`; downscaling is antialiased."""
    rows = _weights(image.shape[-2], scale).to(image)
    columns = _weights(image.shape[-1], scale).to(image)
    return rows @ image @ columns.T


def _weights(size: int, scale: float) -> Tensor:
    """The matrix (new size, size) that resizes one dimension.

    Output pixel x has its centre at u = (x + 1/2) / scale - 1/2 of the input. The image is padded
    symmetrically by its mirror image, and each row sums to 1.
    """
    # 1/scale is seldom exact: without the small term 255 * (1/3) might have 86 pixels.
    new_size = math.ceil(size * scale - 1e-9)
    # For downscaling the kernel is stretched over 1/scale pixels: that is the antialiasing.
    stretch = min(scale, 1.0)
    width = KERNEL_WIDTH / stretch
    centre = (torch.arange(new_size, dtype=torch.float64) + 0.5) / scale - 0.5
    first = torch.floor(centre - width / 2).to(torch.int64)
    pixels = first[:, None] + torch.arange(math.ceil(width) + 2)
    weights = _cubic((centre[:, None] - pixels) * stretch)
    weights /= weights.sum(dim=1, keepdim=True)
    folded = pixels % (2 * size)
    inside = torch.where(folded < size, folded, 2 * size - 1 - folded)
    matrix = torch.zeros(new_size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, inside, weights)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution kernel with a = -1/2."""
    x = x.abs()
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return torch.where(x <= 1, near, torch.where(x <= 2, far, torch.zeros_like(x)))
