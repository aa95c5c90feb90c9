"""`loraplex serve` as a newcomer and a script meet it."""

import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import openai
import pytest
from openai import OpenAI
from tests.e2e.stand import Served, environment, serving, tiny_adapter
from tests.until import wait_until

pytestmark = pytest.mark.slow

QUESTION = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
MORE = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}


def ask(client: OpenAI, model: str) -> tuple[int, ...]:
    answer = client.chat.completions.create(model=model, **QUESTION, **MORE)  # type: ignore[call-overload]
    assert answer.model == model
    assert answer.usage.completion_tokens == 8
    return tuple(answer.choices[0].token_ids)


def test_first_start_leaves_what_scripts_need(served: Served) -> None:
    demo_file = served.home / "demo.json"
    assert stat.S_IMODE(demo_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.home.stat().st_mode) == 0o700
    assert served.demo.keys() == {"base_url", "base_model", "tenants"}
    assert served.demo["base_url"] == served.base_url
    assert list(served.demo["tenants"]) == ["acme", "globex", "initech"]
    assert served.log.read_text().count("curl -N") == 3


def test_each_tenant_is_served_streaming(served: Served) -> None:
    for tenant in ("acme", "globex", "initech"):
        with (
            served.client(tenant) as client,
            client.chat.completions.create(
                model=served.demo["tenants"][tenant]["model"],
                stream=True,
                stream_options={"include_usage": True},
                **QUESTION,  # type: ignore[call-overload]
                **MORE,
            ) as stream,
        ):
            chunks = list(stream)
        assert chunks[-1].usage.completion_tokens == 8
        assert any(chunk.choices and chunk.choices[0].finish_reason == "length" for chunk in chunks)


def test_printed_command_works_when_pasted(served: Served) -> None:
    lines = served.log.read_text().split("# globex")[1].split("\n\n")[0].splitlines()[1:]
    done = subprocess.run("\n".join(lines), shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "data: [DONE]" in done.stdout


def test_revoked_key_gets_no_new_request_after_a_second(served: Served) -> None:
    key = served.cli("keys", "create", "--tenant", "acme")
    with served.client_with(key) as client:
        ask(client, served.model.name)
        served.cli("keys", "revoke", key.split("_")[1])
        time.sleep(1)
        with pytest.raises(openai.AuthenticationError):
            ask(client, served.model.name)


def test_tenant_key_and_adapter_added_beside_the_server_work_at_once(
    served: Served, tmp_path: Path
) -> None:
    served.cli("tenants", "create", "umbrella")
    key = served.cli("keys", "create", "--tenant", "umbrella")
    folder = tiny_adapter(tmp_path / "adapter", seed=1)
    with served.client_with(key) as client, served.client("acme") as other:
        with pytest.raises(openai.NotFoundError):
            ask(client, "support")
        served.cli("adapters", "add", "--tenant", "umbrella", "--name", "support", str(folder))

        assert [model.id for model in client.models.list()] == [served.model.name, "support"]
        assert ask(client, "support") != ask(client, served.model.name)
        with pytest.raises(openai.NotFoundError):  # the name is umbrella's alone
            ask(other, "support")


def test_taken_port_is_refused_with_what_to_do(served: Served, tmp_path: Path) -> None:
    env = environment(tmp_path / "home", MODEL=served.model, PORT=served.port)
    done = subprocess.run([sys.executable, "-m", "loraplex_platform", "serve"], env=env,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert f"port {served.port}" in done.stderr
    assert "LORAPLEX_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_database_that_cannot_be_opened_ends_serve_and_the_engine_that_loads(
    model: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}"  # a folder
    env = environment(tmp_path / "home", MODEL=model, PORT=0, DATABASE_URL=url)
    done = subprocess.run([sys.executable, "-m", "loraplex_platform", "serve"], env=env,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    # It has returned: the engine, which wrote into the same pipe, is gone, too
    assert done.returncode == 1
    assert "unable to open database file" in done.stderr


def test_second_start_keeps_keys_and_prints_no_secret(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home, model) as first:
        key = first.demo["tenants"]["acme"]["api_key"]
    with serving(home, model) as second:
        log = second.log.read_text()
        assert "lpx_" not in log
        assert second.demo["base_url"] == second.base_url  # it follows the port
        assert second.demo["tenants"]["acme"]["api_key"] == key
        with second.client("acme") as client:
            ask(client, model.name)


def test_setting_that_the_engine_refuses_ends_serve_with_its_reason(
    model: Path, tmp_path: Path
) -> None:
    env = environment(tmp_path / "home", MODEL=model, PORT=0, MAX_LORA=3)
    done = subprocess.run([sys.executable, "-m", "loraplex_platform", "serve"], env=env,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert "unknown setting: max_lora" in done.stderr
    assert "the engine process cannot start" in done.stderr


def test_killed_parent_leaves_no_orphans(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "home", model) as served:
        children = [served.child("loraplex_engine"), served.child("loraplex_platform.api")]
        served.process.kill()
        served.process.wait()
        wait_until(lambda: not any(c.is_running() for c in children), what="the children's end")


def test_new_weights_under_the_same_name_find_no_kv_of_the_old(
    served: Served, tmp_path: Path
) -> None:
    served.cli("tenants", "create", "cyberdyne")
    key = served.cli("keys", "create", "--tenant", "cyberdyne")
    folders = [tiny_adapter(tmp_path / str(seed), seed=seed) for seed in (5, 6)]
    prompt = "the same words, long enough to fill some blocks of the cache " * 2
    with served.client_with(key) as client:

        def say(name: str) -> tuple[str, int]:
            done = client.completions.create(
                model=name,
                prompt=prompt,
                max_tokens=12,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            assert done.usage is not None
            assert done.usage.prompt_tokens_details is not None
            return done.choices[0].text, done.usage.prompt_tokens_details.cached_tokens or 0

        answers = {}
        for name, folder in (("bot", folders[0]), ("bot", folders[1]), ("other", folders[1])):
            parts = {
                part: (part, (folder / f"adapter_{file}").read_bytes())
                for part, file in (("config", "config.json"), ("weights", "model.safetensors"))
            }
            published = httpx2.post(
                f"{served.base_url}/adapters",
                data={"name": name, "activate": "true"},
                files=parts,
                headers={"authorization": f"Bearer {key}"},
                timeout=60,
            )
            assert published.status_code in (200, 201), published.text
            answers[name, folder] = say(name)
            if name == "bot":
                assert answers[name, folder][1] == 0
                assert say(name)[1] > 0
    old, new, under_another_name = answers.values()
    assert new[0] != old[0]
    assert new[0] == under_another_name[0]
