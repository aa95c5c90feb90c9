"""Registered prefixes, shares of the cache, and who finds what."""

from dataclasses import replace

import pytest
from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.scripted import Scripted, request

from loraplex_engine.messages import DropPrefix, Generate, RegisterPrefix
from loraplex_engine.scheduling.policies import PolicyName

PREFIX = "you are kind "  # three blocks of four, and a rest


def register(prefix: str = PREFIX, **change: object) -> RegisterPrefix:
    plain = RegisterPrefix("p", "acme", "scope", None, tuple(map(ord, prefix)))
    return replace(plain, **change)  # type: ignore[arg-type]


def of(tenant: str, sent: Generate) -> Generate:
    return replace(sent, tenant=tenant, cache_scope=f"scope of {tenant}")


@pytest.mark.parametrize("policy", ["fcfs", "hfs"])
def test_a_registered_prefix_is_there_for_the_first_request(policy: PolicyName) -> None:
    world = Scripted(policy=policy)
    world.run()
    world.engine.submit(register())
    world.run()
    assert world.events == []
    world.run(request(prompt=PREFIX + "now"))
    assert world.finished().cached_tokens == 12
    (seen,) = world.engine.stats().prefixes
    assert (seen.requests, seen.hits, seen.saved_tokens, seen.warm_tokens) == (1, 1, 12, 12)
    assert world.engine.stats().tokens.prompt == len(PREFIX + "now")


def test_another_beginning_is_no_request_of_the_prefix() -> None:
    world = Scripted()
    world.run()
    world.engine.submit(register())
    world.run(request("other", "you are not"), request("short", PREFIX[:9]))
    (seen,) = world.engine.stats().prefixes
    assert (seen.requests, seen.hits) == (0, 0)


def test_a_prefix_registered_twice_is_computed_once() -> None:
    world = Scripted()
    world.engine.submit(register())
    world.run()
    num_plans = len(world.runner.plans)
    world.engine.submit(register())
    assert not world.engine.has_work
    world.engine.submit(register(adapter="a"))  # the same id, another version
    assert world.engine.has_work
    assert num_plans == len(world.runner.plans)


def test_others_cannot_push_a_warm_prefix_out_until_it_is_dropped() -> None:
    world = Scripted()
    world.engine.submit(register())
    world.run()
    for i in range(8):
        world.run(request(f"a{i}", f"{i}" * 30))
    assert world.engine.stats().prefixes[0].warm_tokens == 12
    world.engine.submit(DropPrefix("p"))
    world.kv.check_integrity([])
    for i in range(8):
        world.run(request(f"b{i}", f"{i}" * 31))
    world.run(request(prompt=PREFIX + "now"))
    assert world.finished().cached_tokens == 0


def test_a_warm_prefix_makes_way_when_nothing_else_can() -> None:
    world = Scripted(num_blocks=8)
    world.engine.submit(register())
    world.run(request(prompt="x" * 20, max_tokens=12))
    assert world.finished().finish_reason == "length"
    assert world.engine.stats().prefixes[0].warm_tokens < 12
    world.kv.check_integrity([])


def test_a_greedy_tenant_evicts_itself() -> None:
    """One has used a little, the other floods the cache: the little one stays."""
    world = Scripted(num_blocks=16)
    world.run(of("small", request("first", "abcdefghijklm")))
    for i in range(12):
        world.run(of("greedy", request(f"g{i}", chr(65 + i) * 12)))
        world.kv.check_integrity([])
    world.run(of("small", request("again", "abcdefghijklm")))
    assert world.finished("again").cached_tokens == 12


@pytest.mark.parametrize("policy", ["fcfs", "priority", "hfs"])
def test_nobody_finds_what_another_tenant_or_version_has_computed(policy: PolicyName) -> None:
    """The same prompt, from two tenants, two versions of an adapter and the base model."""
    world = Scripted(
        policy=policy, num_blocks=64, adapters=MemoryAdapters(("v1", "v2"), num_slots=2)
    )
    prompt = "the same prompt for all"
    variants = [(t, a) for t in ("acme", "globex") for a in (None, "v1", "v2")]
    for tenant, adapter in variants:
        name = f"{tenant} {adapter}"
        world.run(of(tenant, request(name, prompt, adapter=adapter)))
        world.run(of(tenant, request(f"{name} again", prompt, adapter=adapter)))
        cached = [world.finished(n).cached_tokens for n in (name, f"{name} again")]
        assert cached == [0, 20]


def test_a_foreign_prefix_cannot_be_waited_for() -> None:
    """Two tenants ask the same at once: both compute all of it, at the same time."""
    world = Scripted(policy="hfs", num_blocks=64, max_num_batched_tokens=64)
    world.engine.submit(of("acme", request("one", "a" * 33)))
    world.engine.submit(of("globex", request("two", "a" * 33)))
    world.step()
    assert [item.num_tokens for item in world.runner.plans[0].items] == [33, 31]
