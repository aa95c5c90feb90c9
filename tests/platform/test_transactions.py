"""Whoever holds a transaction open waits for the database and for nothing else.

An engine, a peer or a hash that takes its time would hold a connection, on SQLite the turn of all who
write, and a second connection may never come while everybody holds a first one.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import loraplex_admin
import loraplex_platform

OPENERS = {"unit_of_work", "changing", "_changing", "reading", "snapshot"}
PACKAGES = [Path(*package.__path__) for package in (loraplex_platform, loraplex_admin)]
MAKERS = {"Callable"}  # what takes a session is none
READS_AS_IT_WRITES = {  # a page at a time, from one reading to one file
    "usage/exports.py: asyncio.to_thread(sink.write, page)",
}


def waits_beside_the_session(tree: ast.AST) -> Iterator[str]:
    """What is awaited while a session is open, and has nothing of that session's in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            opened = [item for item in node.items if _last_name(item.context_expr) in OPENERS]
            yield from (ast.unparse(item.context_expr) for item in opened[1:])
            if opened:
                held = set().union(*(names(item.optional_vars) for item in opened))
                yield from _strangers(node.body, held)
        elif isinstance(node, ast.AsyncFunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            kinds = {a.arg: names(a.annotation) for a in arguments}
            given = {
                a for a, kind in kinds.items() if "AsyncSession" in kind and kind.isdisjoint(MAKERS)
            }
            if given:
                yield from _strangers(node.body, given)


def _strangers(body: list[ast.stmt], held: set[str]) -> Iterator[str]:
    nodes = [node for statement in body for node in ast.walk(statement)]
    grown = True
    while grown:  # repositories, and what else is made of the session
        made = [n for n in nodes if isinstance(n, ast.Assign) and names(n.value) & held]
        made = [n for n in made if not isinstance(n.value, ast.Await)]
        targets = {name for assign in made for target in assign.targets for name in names(target)}
        grown = not targets <= held
        held = held | targets
    for node in nodes:
        for waited in _waited(node):
            if not names(waited) & held:
                yield ast.unparse(waited)


def _waited(node: ast.AST) -> Iterable[ast.expr]:
    if isinstance(node, ast.Await):
        return [node.value]
    if isinstance(node, ast.AsyncFor):
        return [node.iter]
    if isinstance(node, ast.comprehension) and node.is_async:
        return [node.iter]
    if isinstance(node, ast.AsyncWith):
        return [item.context_expr for item in node.items]
    return []


def names(node: ast.AST | None) -> set[str]:
    return set() if node is None else {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _last_name(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_nothing_else_is_awaited_while_a_transaction_is_open() -> None:
    found = {
        f"{path.relative_to(package).as_posix()}: {wait}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.parent.name != "db"  # it makes the sessions
        for wait in waits_beside_the_session(ast.parse(path.read_text()))
    }
    assert found == READS_AS_IT_WRITES


SOURCE = """
async def given(self, session: AsyncSession):
    rows = Rows(session)
    await rows.all()
    await self.engine.send()

async def opened(self):
    async with self._database.reading(by) as session:
        await session.flush()
        async for row in Rows(session).pages():
            await asyncio.to_thread(print)
        async with self._database.snapshot() as second:
            await second.flush()
    await self.engine.explain()

async def both(self):
    async with self._database.reading() as session, self._database.unit_of_work() as second:
        await second.flush()
"""


def test_the_check_sees_what_it_should() -> None:
    found = set(waits_beside_the_session(ast.parse(SOURCE)))
    assert found == {
        "self.engine.send()",
        "asyncio.to_thread(print)",
        "self._database.snapshot()",
        "second.flush()",
        "self._database.unit_of_work()",
    }
