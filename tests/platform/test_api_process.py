"""An API process as production runs it: light, and silent about what it is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.platform_stand import Seeded, home_like, tiny_model

SCRIPT = """
import asyncio, json, sys
from pathlib import Path
import httpx2
from loraplex_engine.fake import FakeEngine
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.observability.logging import configure_logging
from loraplex_platform.openai.served_model import ServedModel

async def main(home, model, key):
    configure_logging("debug")
    app = create_app(Settings(home=Path(home)), FakeEngine(), ServedModel.load(Path(model)))
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            message = {"role": "user", "content": "the quick brown fox"}
            answer = await http.post(
                "/v1/nothing%0Aforged",
                headers={"authorization": f"Bearer {key}"},
            )
            answer = await http.post(
                "/v1/chat/completions",
                json={"model": "tiny", "messages": [message], "max_tokens": 3},
                headers={"authorization": f"Bearer {key}"},
            )
    print(json.dumps({"status": answer.status_code, "modules": sorted(sys.modules)}))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def served_chat(
    seeded: tuple[Path, Seeded], tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    template, keys = seeded
    home = tmp_path_factory.mktemp("api")
    home_like(template, home)
    model = tiny_model(home / "tiny")
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home), str(model), keys.acme],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )


def test_serving_a_chat_loads_no_torch(served_chat: subprocess.CompletedProcess[str]) -> None:
    told = json.loads(served_chat.stdout)
    loaded = {name.split(".")[0] for name in told["modules"]}
    assert told["status"] == 200
    heavy = {"torch", "triton", "numba", "transformers", "loraplex_kernels"}
    assert loaded & heavy == set()
    assert "redis" not in loaded  # an extra: nobody asked for it


def test_log_is_json_without_prompts_and_keys(
    served_chat: subprocess.CompletedProcess[str], keys: Seeded
) -> None:
    lines = [json.loads(line) for line in served_chat.stderr.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [404, 200]
    assert requests[1]["request_id"].startswith("req_")
    assert "brown fox" not in served_chat.stderr
    assert keys.acme not in served_chat.stderr
