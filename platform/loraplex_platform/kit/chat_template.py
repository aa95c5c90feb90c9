"""Chat templates as model folders have them, in Jinja's sandbox; those of tenants also within bounds.

A tenant's template cannot reach Python, and what it may compute is bounded: the steps of its loops and
macros, the time they take, the length of every string and list it makes.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# What a template may raise over messages that it was not written for.
TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    MemoryError,
)
MAX_LENGTH = 1 << 20  # of a string or a list
MAX_STEPS = 100_000
MAX_SECONDS = 0.25  # of the thread's own time
MAX_BITS = 256  # of a number
FILTERS = (
    "abs", "capitalize", "count", "default", "d", "dictsort", "first", "float", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "title",
    "trim", "unique", "upper",
)  # fmt: skip
# Methods of strings whose results may be far longer than what they are given.
UNBOUNDED = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill")
HERE = "loraplex_platform.kit.chat_template"


class TemplateRefusal(TemplateError):
    """The chat template itself refused these messages, or goes beyond its bounds."""


@dataclass(slots=True)
class _Budget:
    """What is left for one rendering."""

    steps: int = MAX_STEPS
    until_s: float = field(default_factory=lambda: time.thread_time() + MAX_SECONDS)


_budget: ContextVar[_Budget] = ContextVar("template budget")


class ChatTemplate:
    """Raises TemplateError if the source is no template."""

    def __init__(self, source: str, *, is_bounded: bool = False) -> None:
        environment = _BoundedEnvironment() if is_bounded else _environment()
        self._template = environment.from_string(source)
        self._put_together = _whole if is_bounded else "".join

    def render(
        self, messages: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, str]
    ) -> str:
        """The prompt's text, up to where the assistant speaks; raises one of TEMPLATE_FAULTS."""
        token = _budget.set(_Budget())
        try:
            pieces = self._template.generate(
                messages=messages, add_generation_prompt=True, **special_tokens
            )
            return self._put_together(pieces)
        finally:
            _budget.reset(token)


def _whole(pieces: Iterable[str]) -> str:
    text, length = [], 0
    for piece in pieces:
        text.append(piece)
        length += len(piece)
        _check_length(length)
    return "".join(text)


def tick() -> str:
    """One more step of a loop or a macro."""
    budget = _budget.get()
    budget.steps -= 1
    if budget.steps < 0 or time.thread_time() > budget.until_s:
        raise TemplateRefusal("the template takes too long")
    return ""


def concat(*parts: object) -> str:
    """What `~` means."""
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect that model folders are written in, without a way out of the sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    _speak_dialect(environment)
    return environment


def _speak_dialect(environment: ImmutableSandboxedEnvironment) -> None:
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)


class _Instrumented(NodeTransformer):
    """Puts a tick into every loop and macro, and bounds what is put together from pieces."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _statement("tick"))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _statement("tick"))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat", node.nodes)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "string", [], [], None, None)
        return node


def _call(name: str, args: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.ImportedName(f"{HERE}.{name}"), args, [], None, None)


def _statement(name: str) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call(name, []))


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.filters = {name: _bounded(self.filters[name], name) for name in FILTERS}
        self.globals = {name: self.globals[name] for name in ("dict", "namespace", "range")}
        _speak_dialect(self)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrumented().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call(self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_method(__obj, args)
        return _checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _bounded(function: Any, name: str) -> Any:
    """A filter whose result is bounded: what can grow is looked at before."""
    if name == "replace":
        return lambda text, old, new, count=None: _replaced(str(text), str(old), str(new), count)
    if name == "join":
        return lambda value, d="", attribute=None: _joined(value, str(d), attribute)
    return function


def _replaced(text: str, old: str, new: str, count: int | None) -> str:
    _check_length((len(text) + 1) * (len(new) + 1) if len(new) > len(old) else len(text))
    return text.replace(old, new, -1 if count is None else count)


def _joined(value: Any, separator: str, attribute: str | None) -> str:
    parts = [str(part if attribute is None else part[attribute]) for part in value]
    _check_length(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _check_method(called: Any, args: Sequence[Any]) -> None:
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in UNBOUNDED:
        raise TemplateRefusal(f"a template may not call {name}")
    if name == "replace" and len(args) > 1:
        _check_length((len(owner) + 1) * (len(str(args[1])) + 1))
    if name == "join" and args:
        parts = list(args[0])
        _check_length(sum(len(str(part)) + len(owner) for part in parts))


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "+":
        _check_length(_length(left) + _length(right))
    elif operator == "%" and isinstance(left, str):
        raise TemplateRefusal("a template may not format with %")
    elif isinstance(left, int) and isinstance(right, int):
        times = max(right, 1) if operator == "**" else 1
        bits = left.bit_length() * times + (right.bit_length() if operator == "*" else 0)
        if operator in ("*", "**") and bits > MAX_BITS:
            raise TemplateRefusal("a number is too large")
    elif operator == "*":
        count = next((n for n in (left, right) if isinstance(n, int)), 1)
        _check_length(max(_length(left), _length(right)) * max(count, 0))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _checked(value: Any) -> Any:
    _check_length(_length(value))
    return value


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise TemplateRefusal(f"a text or list is longer than {MAX_LENGTH}")


def _tojson(value: object, indent: int | None = None) -> str:
    if indent is not None and not 0 <= indent <= 16:
        raise TemplateRefusal("tojson is indented by 0 to 16")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)
