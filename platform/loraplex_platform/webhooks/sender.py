"""Posting to an address that a tenant named, without lending it our place in the network."""

import http.client
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Sequence[str]]
MAX_ANSWER_BYTES = 64 * 1024


class Refused(Exception):
    """We do not post there; carries the reason."""


class Sender:
    """https to public addresses; plain http too to the networks that the operator has named."""

    def __init__(self, private: Sequence[Network] = (), *, timeout_s: float = 10.0) -> None:
        self._private = private
        self._timeout_s = timeout_s

    def check(self, url: str) -> SplitResult:
        """Raises Refused for what is wrong with the address as it is written."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and self._private):
            raise Refused("the address must begin with https://")
        if not parts.hostname or parts.username or parts.password or parts.fragment:
            raise Refused("the address must be a host and a path, without a name or a password")
        return parts

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], resolve: Resolve | None = None
    ) -> int:
        """The answer's status; raises Refused or OSError. Blocks. Follows no redirect.

        The name is resolved once, and it is the checked address that is connected to.
        """
        parts = self.check(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        addresses = (resolve or _resolve)(host, port)
        for address in addresses:
            self._check_address(address, parts.scheme)
        connection = _Pinned(host, port, addresses[0], parts.scheme, self._timeout_s)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, dict(headers))
            answer = connection.getresponse()
            answer.read(MAX_ANSWER_BYTES)
            return answer.status
        except http.client.HTTPException as error:
            raise OSError(f"not an HTTP answer: {type(error).__name__}") from error
        finally:
            connection.close()

    def _check_address(self, text: str, scheme: str) -> None:
        address: IPv4Address | IPv6Address = ip_address(text)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._private):
            return
        if scheme != "https" or not address.is_global or address.is_multicast:
            raise Refused("the address is not a public one")


class _Pinned(http.client.HTTPConnection):
    """A connection to one checked address, whatever the name says meanwhile."""

    def __init__(self, host: str, port: int, address: str, scheme: str, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address = address
        self._scheme = scheme

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._scheme == "https":
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]
