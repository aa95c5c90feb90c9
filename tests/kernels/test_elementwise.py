"""Normalisation and activation on the CPU: equal to the definition, row by row."""

import pytest
import torch

from loraplex_kernels.activation import gelu_tanh_and_multiply, silu_and_multiply
from loraplex_kernels.activation import reference as activation_reference
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.norm import rms_norm
from loraplex_kernels.testing import NUM_TOKENS, assert_close

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("width", [576, 33])
def test_norm_equals_the_definition(dtype: torch.dtype, num_tokens: int, width: int) -> None:
    x, residual = torch.randn(num_tokens, width).to(dtype), torch.randn(num_tokens, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    assert_close(
        rms_norm(x, weight, 1e-5), norm_reference.rms_norm(x.float(), weight, 1e-5, None), dtype
    )
    mine, theirs = residual.clone(), residual.clone()
    expected = norm_reference.rms_norm(x, weight, 1e-5, theirs)
    assert_close(rms_norm(x, weight, 1e-5, mine), expected, dtype)
    assert torch.equal(mine, theirs)
    expected = norm_reference.rms_norm(x.float(), weight, 1e-5, None, 1.0)
    assert_close(rms_norm(x, weight, 1e-5, offset=1.0), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("width", [1536, 33])
def test_activation_equals_the_definition(dtype: torch.dtype, num_tokens: int, width: int) -> None:
    gate_up = (torch.randn(num_tokens, 2 * width) * 8).to(dtype)
    gate_up[0, :2] = torch.tensor([-200.0, 200.0])
    expected = activation_reference.silu_and_multiply(gate_up.float())
    assert_close(silu_and_multiply(gate_up), expected, dtype)
    expected = activation_reference.gelu_tanh_and_multiply(gate_up.float())
    assert_close(gelu_tanh_and_multiply(gate_up), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(63, 576).to(dtype), torch.randn(576).to(dtype)
    normed, activated = rms_norm(x, weight, 1e-5), silu_and_multiply(x)
    for i in range(63):
        assert torch.equal(rms_norm(x[i : i + 1], weight, 1e-5)[0], normed[i])
        assert torch.equal(silu_and_multiply(x[i : i + 1])[0], activated[i])
