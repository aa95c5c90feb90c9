"""Identifiers: a prefix that says what a thing is, and a UUIDv7 that sorts by creation time."""

import os
import time
import uuid


def uuid7(now_ms: int, entropy: bytes) -> uuid.UUID:
    """RFC 9562: 48 bits of Unix milliseconds, then version, variant and 74 of 80 random bits."""
    value = (now_ms & (1 << 48) - 1) << 80 | int.from_bytes(entropy[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def new_id(prefix: str, separator: str = "_") -> str:
    """For example `req_0197d3…`: the prefix and 32 hexadecimal digits."""
    return f"{prefix}{separator}{uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex}"
