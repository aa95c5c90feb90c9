"""Who is visited when, and for what."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from passes import GOLDEN, Pass
from visit import PEFT_SYSTEMS

PASSES = (GOLDEN, "w1", "w3", "w3+warm", "w0", "w1:16", "w1@0.5", "w1@2", "w1@best")
FEW = 16  # requests, at most, that PEFT is asked for
Entry = dict[str, Any]  # of the journal


class Visit(NamedTuple):
    """`turn` counts the visits of a system in its round."""

    round: int
    system: str
    turn: int
    passes: list[str]


def plan(systems: Sequence[str], passes: Sequence[str], rounds: int) -> list[Visit]:
    """Every other round goes backwards."""
    visits = []
    for number in range(rounds):
        turns: dict[str, int] = {}
        for system in systems[:: -1 if number % 2 else 1]:
            turn = turns[system] = turns.get(system, -1) + 1
            is_first = number == 0 and turn == 0
            wanted = [p for p in passes if _suits(system, p) and (is_first or _is_repeated(p))]
            if wanted:
                visits.append(Visit(number, system, turn, wanted))
    return visits


def missing(visit: Visit, entries: Sequence[Entry]) -> list[str]:
    """What the journal lacks of a visit, and the cold pass before a warm one."""
    key = visit[:3]
    done = {
        e["done"] for e in entries if "done" in e and (e["round"], e["system"], e["turn"]) == key
    }
    left: list[str] = []
    for text in visit.passes:
        if text not in done:
            if text != GOLDEN and Pass.parse(text).is_warm:
                left.append(str(Pass.parse(text).cold))
            left.append(text)
    return list(dict.fromkeys(left))


def _is_repeated(text: str) -> bool:
    """In every round; the others are long, or need no second look."""
    if text == GOLDEN:
        return False
    wanted = Pass.parse(text)
    return wanted.limit is None and wanted.is_at_once


def _suits(system: str, text: str) -> bool:
    if text == GOLDEN:
        return system not in (*PEFT_SYSTEMS, "vllm-base")
    wanted = Pass.parse(text)
    if system in PEFT_SYSTEMS:
        is_small = wanted.limit is not None and wanted.limit <= FEW
        return is_small and wanted.is_at_once and not wanted.is_warm
    return system != "vllm-base" or (wanted.workload == "w0" and wanted.is_at_once)
