"""Rotary position embeddings: how they are configured, and their tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from loraplex_engine.errors import UnsupportedModel

ROPE_TYPES = ("default", "linear", "llama3", "longrope", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """One kind of rotary embedding; which of the fields beyond the first three count, `kind` says."""

    theta: float
    kind: str = "default"
    rotary_share: float = 1.0  # of a head's dimensions, from the first on
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    amplitude: float = 1.0  # of cosines and sines
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True


def read_rope(raw: Mapping[str, Any], kind_of_layer: str, max_position: int) -> Rope:
    """Both spellings: rope_parameters (transformers 5), and rope_theta with rope_scaling.

    A model whose sliding layers turn otherwise says so by layer kind, or by rope_local_base_freq.
    """
    fields = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = raw.get("rope_theta")
    if kind_of_layer in fields:
        fields = fields[kind_of_layer]
    elif "rope_local_base_freq" in raw and kind_of_layer == "sliding_attention":
        fields, theta = {}, raw["rope_local_base_freq"]
    theta = fields.get("rope_theta") or theta or 10000.0
    kind = fields.get("rope_type") or fields.get("type") or "default"
    share = fields.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"rope scaling {kind!r} is not supported; these are: {', '.join(ROPE_TYPES)}"
        )
    if kind == "default":
        return Rope(theta, rotary_share=share)
    original = (
        fields.get("original_max_position_embeddings")
        or raw.get("original_max_position_embeddings")
        or max_position
    )
    factor = fields.get("factor") or max_position / original
    return Rope(
        theta=theta,
        kind=kind,
        rotary_share=share,
        factor=factor,
        low_freq_factor=fields.get("low_freq_factor", 1.0),
        high_freq_factor=fields.get("high_freq_factor", 4.0),
        original_max_position=original,
        amplitude=_amplitude(kind, fields, factor, original),
        short_factors=tuple(fields.get("short_factor", ())),
        long_factors=tuple(fields.get("long_factor", ())),
        beta_fast=fields.get("beta_fast") or 32.0,
        beta_slow=fields.get("beta_slow") or 1.0,
        truncates=fields.get("truncate", True),
    )


def _amplitude(kind: str, fields: Mapping[str, Any], factor: float, original: int) -> float:
    if kind not in ("longrope", "yarn"):
        return 1.0
    if fields.get("attention_factor") is not None:
        return float(fields["attention_factor"])
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    scale, all_dims = fields.get("mscale"), fields.get("mscale_all_dim")
    if scale and all_dims:
        return _yarn_amplitude(factor, scale) / _yarn_amplitude(factor, all_dims)
    return _yarn_amplitude(factor, 1.0)


def _yarn_amplitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosines and sines of every position: float32 [max_position, rotary_dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor

    @staticmethod
    def build(
        rope: Rope | None, head_dim: int, max_position: int, device: torch.device
    ) -> "RotaryTable":
        """Of a rope, or one that turns nothing."""
        if rope is None:
            still = torch.zeros(max_position, 1, device=device)
            return RotaryTable(still + 1, still)
        frequencies = _inverse_frequencies(rope, int(head_dim * rope.rotary_share), max_position)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        return RotaryTable(
            (angles.cos() * rope.amplitude).to(device), (angles.sin() * rope.amplitude).to(device)
        )


def _inverse_frequencies(rope: Rope, dim: int, max_position: int) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    frequencies = 1.0 / rope.theta**exponents
    match rope.kind:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(rope, frequencies)
        case "yarn":
            return _yarn(rope, frequencies, dim)
        case "longrope":
            # One table for all positions: cached keys must not change as their sequence grows
            is_long = max_position > rope.original_max_position
            return frequencies / torch.tensor(rope.long_factors if is_long else rope.short_factors)
        case _:
            return frequencies


def _llama3(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between interpolated."""
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position / wavelengths
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor


def _yarn(rope: Rope, frequencies: torch.Tensor, dim: int) -> torch.Tensor:
    """As llama3, with a ramp over dimensions between two numbers of turns in the original context."""

    def dimension(turns: float) -> float:
        wavelength = rope.original_max_position / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0
    index = torch.arange(dim // 2, dtype=torch.float32)
    stretched = ((index - low) / (high - low)).clamp(0, 1)
    return (1 - stretched) * frequencies + stretched * frequencies / rope.factor
