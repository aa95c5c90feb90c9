"""What one system is asked to do in one go, as it is written on the command line."""

import re
from typing import NamedTuple, Self

from workload import Request, load

GRAMMAR = re.compile(
    r"(?P<workload>w\d)(:(?P<limit>\d+))?(@(?P<rate>\d+(\.\d+)?|best))?(?P<warm>\+warm)?"
)
GOLDEN = "golden"  # greedy tokens, compared with transformers and PEFT in float32


class Pass(NamedTuple):
    """`w1`: all requests at once; `w1:16`: the first 16; `w1@0.5`: so many a second, as a Poisson
    process; `w1@best`: at rising and falling rates; `w3+warm`: once more, when the server knows the
    system prompts from a pass of `w3`."""

    workload: str
    limit: int | None = None
    rate: float | None = None
    is_search: bool = False
    is_warm: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        found = GRAMMAR.fullmatch(text)
        if found is None:
            raise SystemExit(
                f"{text!r} is no pass: w1, w1:16, w1@0.5, w1@best, w3+warm or {GOLDEN}"
            )
        rate, limit = found["rate"], found["limit"]
        return cls(
            found["workload"],
            int(limit) if limit else None,
            float(rate) if rate and rate != "best" else None,
            rate == "best",
            found["warm"] is not None,
        )

    def __str__(self) -> str:
        limit = "" if self.limit is None else f":{self.limit}"
        rate = "@best" if self.is_search else "" if self.rate is None else f"@{self.rate:g}"
        return f"{self.workload}{limit}{rate}{'+warm' if self.is_warm else ''}"

    @property
    def is_at_once(self) -> bool:
        return self.rate is None and not self.is_search

    @property
    def cold(self) -> Self:
        """What has to come before a warm pass."""
        return self._replace(is_warm=False)

    def requests(self, shift: int) -> list[Request]:
        """Another shift means other prompts; a warm pass has the shift of its cold one."""
        tail_shift = int(self.is_warm)
        return load(self.workload, self.limit, shift, tail_shift=tail_shift, rate=self.rate)
