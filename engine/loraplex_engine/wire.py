"""Messages as bytes: a batch is a MessagePack list of [name of the class, fields].

A frame on the socket is [MAGIC, batch]. An empty batch is a sign of life; a client's first one asks
for Hello and the current EngineStats.
"""

from collections.abc import Callable, Iterable
from typing import Any, get_args

import msgspec
import zmq

from loraplex_engine.errors import ProtocolError
from loraplex_engine.messages import PROTOCOL_VERSION, Command, Event

MAGIC = b"lpx%d" % PROTOCOL_VERSION
ALIVE = msgspec.msgpack.encode(())
HEARTBEAT_S = 0.5
VANISHED_S = 1.5  # a peer whose transport does not answer heartbeats for so long is gone

_encode = msgspec.msgpack.Encoder().encode
_decode_tagged = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]]).decode
_decoders: dict[str, Callable[[msgspec.Raw], Any]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind).decode for kind in get_args(Command | Event)
}


def encode(messages: Iterable[Command | Event]) -> bytes:
    return _encode([(type(message).__name__, message) for message in messages])


def decode(frame: list[bytes]) -> list[Any]:
    """The messages of one frame. Raises ProtocolError."""
    if len(frame) != 2 or frame[0] != MAGIC:
        theirs = frame[0][:16] if frame else b""
        raise ProtocolError(f"the peer speaks {theirs!r}, this process {MAGIC!r}")
    try:
        return [_decoders[kind](fields) for kind, fields in _decode_tagged(frame[1])]
    except KeyError as unknown:
        raise ProtocolError(f"unknown message {unknown}") from unknown
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed message: {error}") from error


def set_heartbeats(socket: "zmq.Socket[Any]") -> None:
    """Have the transport itself notice a peer that is gone; its threads answer whatever Python does."""
    socket.heartbeat_ivl = int(1000 * HEARTBEAT_S)
    socket.heartbeat_timeout = socket.heartbeat_ttl = int(1000 * VANISHED_S)
