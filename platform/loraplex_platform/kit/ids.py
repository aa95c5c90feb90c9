"""Identifiers: a prefix that says what a thing is, and a UUIDv7 that sorts by creation time."""

import os
import time
import uuid
from datetime import UTC, datetime


def uuid7(now_ms: int, entropy: bytes) -> uuid.UUID:
    """RFC 9562: 48 bits of Unix milliseconds, then version, variant and 74 of 80 random bits."""
    value = (now_ms & (1 << 48) - 1) << 80 | int.from_bytes(entropy[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def new_id(prefix: str, separator: str = "_") -> str:
    """For example `req_0197d3…`: the prefix and 32 hexadecimal digits."""
    return f"{prefix}{separator}{uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex}"


def made_at(id: str) -> datetime | None:
    """When `new_id` made this; None of an id that it did not make."""
    try:
        value = uuid.UUID(hex=id.rpartition("_")[2])
    except ValueError:
        return None
    return datetime.fromtimestamp((value.int >> 80) / 1000, UTC) if value.version == 7 else None
