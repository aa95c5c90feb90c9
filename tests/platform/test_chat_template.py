"""A tenant's chat template speaks the usual dialect, and can neither get out nor take the machine."""

import time

import pytest
from jinja2 import TemplateError

from loraplex_platform.kit.chat_template import TEMPLATE_FAULTS, ChatTemplate

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi "}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] | trim ~ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DIALECT = (
    "{%- set ns = namespace(n=0) -%}{%- macro say(m) -%}[{{ m.role | upper }}] {{ m.content }}"
    "{%- endmacro -%}{%- for m in messages if m.role != 'system' -%}{%- set ns.n = ns.n + 1 -%}"
    "{{ say(m) | replace('hi', 'ho') }}{{ {'a': [1, 2]} | tojson }}{{ loop.index }}"
    "{%- if loop.last %}{% break %}{% endif -%}{%- endfor -%}{{ bos_token }}{{ ns.n }}"
)


def render(source: str) -> str:
    return ChatTemplate(source, is_bounded=True).render(MESSAGES, {"bos_token": "<s>"})


@pytest.mark.parametrize("source", [CHATML, DIALECT])
def test_the_usual_dialect_means_the_same_within_bounds(source: str) -> None:
    plain = ChatTemplate(source).render(MESSAGES, {"bos_token": "<s>"})
    assert render(source) == plain
    assert plain


def growing(start: str, expression: str) -> str:
    return (
        f"{{% set n = namespace(x={start}) %}}{{% for i in range(99) %}}"
        f"{{% set n.x = {expression} %}}{{% endfor %}}"
    )


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__.__globals__['sys'] }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ ''['__class__'] }}{{ (''|attr('__class__')).mro() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__ }}",
]
BOMBS = [
    "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for m in [[1]] recursive %}{{ loop(m) if m is iterable else loop([[1]]) }}{% endfor %}",
    "{{ 'a' * 999999999 }}",
    "{{ 999999999 * 'a' }}",
    "{{ [1] * 999999999 }}",
    "{{ 9 ** 999999999 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a' | indent(999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ lipsum(n=99999999) }}",
    "{{ range(999999999) | list }}",
    growing("'aa'", "n.x ~ n.x"),
    growing("'aa'", "n.x + n.x"),
    growing("'aa'", "[n.x, n.x] | join"),
    growing("'aa'", "n.x.replace('a', n.x)"),
    growing("'aa'", "n.x | replace('a', n.x)"),
    growing("'aa'", "n.x.join([n.x, n.x, n.x])"),
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    growing("[1]", "n.x + n.x"),
    growing("9", "n.x * n.x"),
    "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{{ " + "f(" * 90 + "'aa'" + ")" * 90 + " }}",
    "{% for i in range(99999) %}{{ 'a' * 99 }}{% endfor %}",
]  # fmt: skip


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    try:
        shown = render(source)
    except TEMPLATE_FAULTS:
        return
    assert shown == "", "undefined things print as nothing"


@pytest.mark.parametrize("source", BOMBS)
def test_what_would_take_the_machine_is_refused_soon(source: str) -> None:
    started_s = time.thread_time()
    with pytest.raises(TEMPLATE_FAULTS):
        render(source)
    assert time.thread_time() - started_s < 10


def test_a_broken_template_is_told_when_it_is_set() -> None:
    with pytest.raises(TemplateError):
        ChatTemplate("{% for %}", is_bounded=True)
