"""How deep JSON is nested, counted before anything parses it."""

import re

MAX_DEPTH = 64
BRACKET_OR_QUOTE = re.compile(rb'[\[\]{}"]')
QUOTE_OR_ESCAPE = re.compile(rb'["\\]')


class JsonDepth:
    """Counts open brackets outside of strings, over chunks as they come."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = False
        self._skip = 0  # bytes of the next chunk that belong to an escape

    def feed(self, chunk: bytes) -> bool:
        """Whether the text so far has kept within MAX_DEPTH."""
        at, self._skip = self._skip, 0
        while found := (QUOTE_OR_ESCAPE if self._in_string else BRACKET_OR_QUOTE).search(chunk, at):
            at, byte = found.end(), found[0]
            if byte == b'"':
                self._in_string = not self._in_string
            elif byte == b"\\":
                at += 1
            else:
                self.depth += 1 if byte in b"[{" else -1
                if self.depth > MAX_DEPTH:
                    return False
        self._skip = max(0, at - len(chunk))
        return True


def is_too_deep(text: bytes) -> bool:
    return not JsonDepth().feed(text)
