"""From which addresses a key may be used, and which address a request comes from."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


def is_within(address: str | None, networks: Sequence[Network]) -> bool:
    """An address that cannot be read is nowhere."""
    parsed = _parse(address)
    return parsed is not None and any(parsed in network for network in networks)


def client_address(
    peer: str | None, forwarded_for: str | None, trusted: Sequence[Network]
) -> str | None:
    """The peer, or what a trusted proxy says of it: the last hop that is not a trusted one."""
    if forwarded_for is None or not is_within(peer, trusted):
        return peer
    for hop in reversed([hop.strip() for hop in forwarded_for.split(",")]):
        if not is_within(hop, trusted):
            return hop if _parse(hop) is not None else peer
    return peer


def _parse(address: str | None) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
