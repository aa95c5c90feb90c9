"""A malformed adapter costs nobody else anything: a real engine's streams say what they say undisturbed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.adapter_stand import AdapterClient, code_of, weights_of
from tests.adapters.test_added_tokens import TOKENIZERS, Shapes, write
from tests.adapters.test_malformed import CORPUS, config
from tests.added_tokens import add_tokens
from tests.stepped_engine import SteppedEngine, tiny_base, tiny_config
from tests.until import until

from loraplex_adapters.errors import AdapterError, RankTooLarge
from loraplex_adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import load_model
from loraplex_platform.config import Settings
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE

NAMES = (CONFIG_NAME, WEIGHTS_NAME)
NUM_STREAMS, NUM_TOKENS = 16, 280
HERE = {**CORPUS, "rank over the limit": (config(r=65), RankTooLarge)}  # of this server
del HERE["too many bytes"]  # are fewer than it takes


@pytest.fixture
async def engine(settings: Settings, tmp_path: Path) -> AsyncIterator[SteppedEngine]:
    settled = tiny_config(tiny_base(tmp_path / "base"))
    engine = SteppedEngine(settled, load_model(settled), AdapterStore(settings.adapter_store))
    yield engine
    await engine.close()


@pytest.fixture
def app(make_app: Callable[..., FastAPI], engine: SteppedEngine, tmp_path: Path) -> FastAPI:
    return make_app(engine, model=str(tmp_path / "base"))


async def ask(client: AdapterClient, index: int) -> list[int]:
    """A stream of its own; each second one is of the base model."""
    answer = await client.ask(
        "steady" if index % 2 else "org/tiny:base",
        messages=[{"role": "user", "content": f"Say {index}."}],
        max_tokens=NUM_TOKENS,
        temperature=0,
        ignore_eos=True,
        return_token_ids=True,
    )
    assert answer.status_code == 200, answer.text
    said: list[int] = answer.json()["choices"][0]["token_ids"]
    return said


def with_tokenizers(base: Path) -> dict[str, tuple[Callable[[Path], None], type[AdapterError]]]:
    """Folders whose tokenizers do not fit this base model."""

    def making(spoil: Callable[[Path], None], shapes: Shapes) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            write(folder, shapes)
            add_tokens(base, folder)
            spoil(folder)

        return make

    return {
        f"tokenizer: {label}": (making(spoil, shapes), error)
        for label, (spoil, shapes, error) in TOKENIZERS.items()
    }


def form_of(folder: Path) -> tuple[bytes, bytes] | None:
    """Config and weights; None where a form cannot say what is wrong with the folder."""
    files = [folder / name for name in NAMES]
    if not folder.exists() or {path.name for path in folder.iterdir()} != set(NAMES):
        return None
    if not all(path.is_file() and not path.is_symlink() for path in files):
        return None
    written, weights = (path.read_bytes() for path in files)
    return written, weights or b"\0"


async def refusal_of_upload(acme: AdapterClient, form: tuple[bytes, bytes]) -> str | None:
    written, weights = form
    status, code = code_of(await acme.upload("bot", weights, written))
    assert status == 400
    return code


async def refusal_of_folder(app: FastAPI, acme: AdapterClient, folder: Path) -> str | None:
    """As an operator who adds a folder of this machine is told."""
    principal = await app.state.authenticator.authenticate(acme.key)
    with pytest.raises(InvalidRequest) as caught:
        await app.state.adapters.add(principal, "bot", folder, by=COMMAND_LINE.actor, activate=True)
    return caught.value.code


async def test_malformed_adapters_are_refused_with_their_codes_while_streams_run(
    app: FastAPI,
    acme: AdapterClient,
    globex: AdapterClient,
    engine: SteppedEngine,
    tmp_path: Path,
) -> None:
    kept = (await globex.upload("steady", weights_of(1))).json()["versions"][0]["sha256"]
    quiet = await asyncio.gather(*(ask(globex, index) for index in range(NUM_STREAMS)))
    engine.holding = True
    streams = [asyncio.create_task(ask(globex, index)) for index in range(NUM_STREAMS)]
    await until(lambda: len(engine.live_ids) == NUM_STREAMS)
    num_uploads = 0
    cases = HERE | with_tokenizers(tmp_path / "base")
    for index, (label, (make, error)) in enumerate(cases.items()):
        folder = tmp_path / str(index)
        make(folder)
        assert await refusal_of_folder(app, acme, folder) == error.code, label
        form = form_of(folder)
        if form is not None:
            num_uploads += 1
            assert await refusal_of_upload(acme, form) == error.code, label
        for _ in range(2):
            engine.step()
    assert num_uploads > 40
    assert len(engine.live_ids) == NUM_STREAMS, "all of it happened while they ran"
    engine.release()
    assert await asyncio.gather(*streams) == quiet
    assert (await acme.call("GET", "/bot")).status_code == 404
    store = app.state.adapters.catalogue._store
    assert list(store.versions()) == [kept]
    assert list((store.root / ".incoming").iterdir()) == []
