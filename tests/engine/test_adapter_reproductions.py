"""What has happened to people who serve many adapters, tried on a real engine over a tiny model."""

import gc
import random
import threading
import time
from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import psutil
import pytest
from tests.engine.adapter_world import GREEDY, LONG, World, make_world
from tests.engine.test_peft_variants import UNTIED, save_variant

from loraplex_adapters.canonical import CANONICAL_NAME
from loraplex_adapters.loader import Loader
from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    DropAdapter,
    Finished,
    TokenEvent,
)
from loraplex_engine.offline import Prompt, generate

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_one_prompt_with_many_adapters_is_never_answered_from_anothers_prefix(world: World) -> None:
    asked: list[str | None] = [world.versions[2], world.versions[5], None]
    cold = {adapter: world.cold(adapter) for adapter in asked}
    assert len({tuple(answer) for answer in cold.values()}) == 3
    for order in permutations(asked):
        with world.engine() as run:
            for adapter in order * 2:
                [answer] = run.say(Prompt(LONG, adapter=adapter, sampling=GREEDY))
                assert answer == cold[adapter]


def test_the_second_answer_of_an_adapter_uses_its_own_prefix(world: World) -> None:
    with world.engine() as run:
        prompt = Prompt(LONG, adapter=world.versions[1], sampling=GREEDY)
        first, second = run.offline.run([prompt])[0], run.offline.run([prompt])[0]
    assert first.finished is not None
    assert second.finished is not None
    assert (first.finished.cached_tokens, second.finished.cached_tokens) == (0, 64)
    assert first.token_ids == second.token_ids


def test_another_tenant_finds_no_prefix_of_the_same_adapter(world: World) -> None:
    with world.engine() as run:
        prompt = Prompt(LONG, adapter=world.versions[1], sampling=GREEDY, tenant="one")
        run.say(prompt)
        [theirs] = run.offline.run([replace(prompt, tenant="two")])
    assert theirs.finished is not None
    assert theirs.finished.cached_tokens == 0


def test_new_weights_in_the_same_folder_are_another_version_with_a_cold_prefix(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "in-place"
    save_variant(world.folder, folder, UNTIED["plain"], 1)
    before = world.put(folder)
    with world.engine() as run:
        prompt = Prompt(LONG, adapter=before, sampling=GREEDY)
        old = run.say(prompt)[0]
        save_variant(world.folder, folder, UNTIED["plain"], 2)
        after = world.put(folder)
        run.offline.engine.submit(DropAdapter(before))
        [new] = run.offline.run([replace(prompt, adapter=after)])
    assert new.finished is not None
    assert new.finished.cached_tokens == 0
    assert new.token_ids == world.cold(after) != old


def test_128_sequences_over_8_adapters_say_what_each_says_alone(world: World) -> None:
    draw = random.Random(3)
    prompts = [
        Prompt(
            [draw.randrange(199) for _ in range(draw.randrange(1, 40))],
            adapter=draw.choice([None, *world.versions]),
            sampling=replace(GREEDY, max_tokens=6),
        )
        for _ in range(128)
    ]
    with world.engine() as run:
        together = run.say(*prompts)
        assert run.cache.stats[0].evictions > 0, "more adapters than slots"
        alone = [run.say(prompt)[0] for prompt in prompts[:40]]
    assert together[:40] == alone


def test_a_version_damaged_on_disk_ends_its_own_requests_alone(
    world: World, tmp_path: Path
) -> None:
    save_variant(world.folder, tmp_path / "a", UNTIED["plain"], 7)
    doomed = world.put(tmp_path / "a")
    file = world.store.path(doomed) / CANONICAL_NAME
    file.write_bytes(file.read_bytes()[:-100])
    healthy = [Prompt(LONG[:9], adapter=v, sampling=GREEDY) for v in world.versions[:4] * 4]
    with world.engine() as run:
        expected = run.say(*healthy)
        done = run.offline.run([*healthy, Prompt(LONG, adapter=doomed, sampling=GREEDY)])
    assert [each.token_ids for each in done[:-1]] == expected
    last = done[-1].finished
    assert last is not None
    assert (last.finish_reason, last.error) == ("error", "unknown_adapter")
    assert "truncated_file" in (last.message or "")


def test_files_deleted_behind_our_back_fail_until_they_are_back(
    world: World, tmp_path: Path
) -> None:
    save_variant(world.folder, tmp_path / "a", UNTIED["plain"], 8)
    version = world.put(tmp_path / "a")
    with world.engine(max_cpu_lora_bytes=0) as run:
        prompt = Prompt(LONG, adapter=version, sampling=GREEDY)
        said = run.say(prompt)
        world.store.delete(version)
        assert run.say(prompt) == said, "it lies in its slot"
        run.offline.engine.submit(DropAdapter(version))
        [gone] = run.offline.run([prompt])
        assert gone.finished is not None
        assert gone.finished.error == "unknown_adapter"
        world.put(tmp_path / "a")
        assert run.say(prompt) == said


def test_loads_under_32_streams_disturb_none_of_them(world: World) -> None:
    """An adapter is loaded and dropped at every step while the streams run."""
    steady = world.versions[:2]
    prompts = [
        Prompt(LONG[i : i + 10], adapter=steady[i % 2], sampling=replace(GREEDY, max_tokens=24))
        for i in range(32)
    ]
    with world.engine() as run:
        quiet = run.say(*prompts)
        engine = run.offline.engine
        requests = [generate(f"stream-{i}", prompt) for i, prompt in enumerate(prompts)]
        for request in requests:
            engine.submit(request)
        said: dict[str, list[int]] = {request.request_id: [] for request in requests}
        visitors, step = world.versions[2:], 0
        while engine.has_work:
            visitor = visitors[step % len(visitors)]
            run.cache.start_load(visitor)
            for event in engine.step():
                if hasattr(event, "token_ids"):
                    said[event.request_id] += event.token_ids
            while run.cache.state(visitor) == "loading":  # beside the step, or after a short one
                run.cache.poll()
                time.sleep(0.0005)
            engine.submit(DropAdapter(visitors[(step + 3) % len(visitors)]))
            step += 1
        assert run.cache.stats[0].loads == len(steady) + step
    assert list(said.values()) == quiet


def test_streams_end_while_another_adapter_is_still_being_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large an adapter is and however slow its disk: it is never read in a step."""
    slow, may_end = world.versions[7], threading.Event()
    original = Loader.load

    def held_up(self: Loader, folder: Path, version: str) -> object:
        assert version != slow or may_end.wait(60)
        return original(self, folder, version)

    streams = [Prompt(LONG[i : i + 10], world.versions[i % 2], GREEDY) for i in range(8)]
    with world.engine() as run:
        alone, expected = run.say(*streams), run.say(Prompt(LONG, slow, GREEDY))[0]
        run.offline.engine.submit(DropAdapter(slow))
        monkeypatch.setattr(Loader, "load", held_up)
        engine, said, ended = run.offline.engine, defaultdict[str, list[int]](list), set[str]()
        engine.submit(generate("slow", Prompt(LONG, slow, GREEDY)))
        for i, prompt in enumerate(streams):
            engine.submit(generate(f"stream-{i}", prompt))
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    said[event.request_id] += event.token_ids
                elif isinstance(event, Finished):
                    ended.add(event.request_id)
            if len(ended) == len(streams) and not may_end.is_set():
                assert not said["slow"]
                may_end.set()
            if engine.is_stalled:
                time.sleep(0.001)
    assert [said[f"stream-{i}"] for i in range(len(streams))] == alone
    assert said["slow"] == expected


def test_fifty_requests_for_a_cold_version_read_it_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    original = Loader.load

    def counted(self: Loader, folder: Path, version: str) -> object:
        reads.append(version)
        return original(self, folder, version)

    monkeypatch.setattr(Loader, "load", counted)
    with world.engine() as run:
        run.say(*[Prompt(LONG[:8], adapter=world.versions[3], sampling=GREEDY)] * 50)
    assert reads == [world.versions[3]]


def test_more_adapters_than_slots_in_a_cycle_say_what_each_says_alone(world: World) -> None:
    alone = {version: world.cold(version, LONG[:20]) for version in world.versions}
    with world.engine(max_loras=2, max_cpu_lora_bytes=20_000) as run:
        for version in world.versions * 2:
            [answer] = run.say(Prompt(LONG[:20], adapter=version, sampling=GREEDY))
            assert answer == alone[version]
        device, host, _ = run.cache.stats
        assert device.evictions > 8
        assert host.num_bytes <= host.budget_bytes


def test_with_one_slot_a_flood_of_one_adapter_lets_another_in_within_its_bound(
    world: World,
) -> None:
    """The flood never ends of itself: for each answer that ends another request comes."""
    flood, rare = world.versions[0], world.versions[1]
    short = replace(GREEDY, max_tokens=8)
    with world.engine(max_loras=1, max_num_seqs=8) as run:
        engine = run.offline.engine
        count, others_before = 0, 0
        waiting, is_done = False, False
        while not is_done and others_before < 20 + 80:
            while count - others_before < 8:
                prompt = Prompt(LONG[count % 50 :][:8], adapter=flood, sampling=short)
                engine.submit(generate(f"flood-{count}", prompt))
                count += 1
            for event in engine.step():
                if isinstance(event, Finished) and event.request_id == "rare":
                    is_done = True
                    assert event.finish_reason == "length"
                elif isinstance(event, Finished):
                    others_before += 1
                    if others_before == 20 and not waiting:
                        waiting = True
                        rare_prompt = Prompt(LONG[:8], adapter=rare, sampling=short)
                        engine.submit(generate("rare", rare_prompt))
            if engine.is_stalled:
                time.sleep(0.001)  # an adapter is being loaded: no step counts
        assert is_done, "its turn comes before eighty others had theirs"
        for index in range(count):
            engine.submit(Abort(f"flood-{index}"))
        while engine.has_work:
            engine.step()


def test_aborted_and_failed_requests_hold_nothing(world: World) -> None:
    with world.engine() as run:
        engine = run.offline.engine
        for i in range(24):
            prompt = Prompt(LONG[: 5 + i], adapter=world.versions[i % 8], sampling=GREEDY)
            engine.submit(generate(f"r{i}", prompt))
            engine.step()
            if i % 2:
                engine.submit(Abort(f"r{i - 1}"))
        engine.submit(generate("bad", Prompt(LONG, adapter="0" * 64, sampling=GREEDY)))
        failures = []
        while engine.has_work:
            failures += [e for e in engine.step() if isinstance(e, AdapterFailed)]
        assert [failure.adapter for failure in failures] == ["0" * 64]
        for version in world.versions:
            engine.submit(DropAdapter(version))
        engine.step()
        assert engine.stats().resident_adapters == ()
        assert engine.stats().free_blocks == engine.stats().num_blocks


@pytest.mark.slow
def test_two_hundred_loads_leave_the_process_as_large_as_it_was(world: World) -> None:
    process = psutil.Process()
    with world.engine(max_cpu_lora_bytes=0) as run:

        def cycle(count: int) -> int:
            for i in range(count):
                version = world.versions[i % 8]
                run.cache.start_load(version)
                deadline = time.monotonic() + 60
                while run.cache.state(version) == "loading":
                    run.cache.poll()
                    assert time.monotonic() < deadline
                    time.sleep(0.0002)
                run.cache.drop(version)
            gc.collect()
            return process.memory_info().rss

        before = cycle(40)
        after = cycle(200)
        assert run.cache.resident == ()
    assert after - before < max(0.02 * before, 8 << 20)
    assert threading.active_count() < 64
