"""What tests of the API stand on: a tiny model folder, a seeded database, a served app."""

import asyncio
import json
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAI
from sqlalchemy import Engine, NullPool, create_engine, select
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from loraplex_adapters.report import LoadReport
from loraplex_engine.fake import FakeEngine
from loraplex_platform.auth.service import KeyService
from loraplex_platform.catalogue.registry import SqlRegistry
from loraplex_platform.config import Settings
from loraplex_platform.db.database import EVERY_TENANT, Database, sync_url
from loraplex_platform.db.scope import ACROSS, across_tenants
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import Base, UsageEvent
from loraplex_platform.openai.served_model import BYTE_OF_CHAR
from loraplex_platform.protocol import PunctualProtocol
from loraplex_platform.tenants.service import TenantService

SPECIAL = ("<unk>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading certificates takes 100 ms a client
PATIENCE_S = 600.0  # also for a connection, which a client would give 5 s
BASE = "org/tiny:base"  # ids may hold slashes and colons


def token_of(char: str) -> int:
    """One token for each byte, after the special ones."""
    return len(SPECIAL) + ord(char)


LETTERS = range(token_of("a"), token_of("z") + 1)


def tiny_model(folder: Path) -> Path:
    """A folder as `models import` leaves it, without weights."""
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    vocab |= {char: len(SPECIAL) + byte for char, byte in BYTE_OF_CHAR.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def letter_engine(**options: object) -> FakeEngine:
    """A fake engine that speaks letters of the tiny model."""
    return FakeEngine(vocab=LETTERS, text_of=lambda i: chr(i - len(SPECIAL)), **options)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Seeded:
    """Keys of two tenants; both have an adapter `support`, acme alone has `acme-only`."""

    acme: str
    globex: str


async def seed(settings: Settings) -> Seeded:
    database = Database(settings.database)
    keys = {}
    for name in ("acme", "globex"):
        tenants = TenantService(database, SystemClock())
        tenant = await tenants.create(name)
        project = await tenants.default_project(tenant)
        service = KeyService(database, Secrets.load_or_create(settings.home), SystemClock())
        keys[name] = str(await service.create(tenant.id, project.id))
        await add_adapter(database, tenant.id, "support", version=f"{name}-support")
        if name == "acme":
            await add_adapter(database, tenant.id, "acme-only", version="acme-only")
    await database.close()
    return Seeded(**keys)


async def add_adapter(database: Database, tenant_id: str, name: str, version: str) -> None:
    report = LoadReport(None, rank=8, num_bytes=1, modules=(), unadapted=(), warnings=())
    await SqlRegistry(database, lambda _: report, SystemClock()).add(tenant_id, name, version)


def engine_of(url: str) -> Engine:
    """For statements of a test's own, on the rows of every tenant."""
    is_postgres = url.startswith("postgres")
    everyone = {"options": f"-c loraplex.tenant_id={EVERY_TENANT}"} if is_postgres else {}
    return create_engine(sync_url(url), poolclass=NullPool, connect_args=everyone)


async def content_of(database: Database) -> str:
    """Every row of every table, as text."""
    async with database.reading() as session:
        rows = [
            repr(tuple(row))
            for table in Base.metadata.sorted_tables
            for row in await session.execute(select(table).execution_options(**{ACROSS: True}))
        ]
    return "\n".join(rows)


async def usage_of(app: FastAPI) -> list[UsageEvent]:
    """All events, oldest first, once every request is settled."""
    await app.state.inference.tasks.drain()
    async with app.state.database.reading() as session:
        statement = across_tenants(UsageEvent).order_by(UsageEvent.request_id)
        return list(await session.scalars(statement))


@dataclass(frozen=True, slots=True)
class Served:
    """An app behind a real socket."""

    app: FastAPI
    engine: FakeEngine
    base_url: str
    keys: Seeded
    stack: AsyncExitStack  # closes the clients

    def client(self, key: str | None = None, **options: object) -> AsyncOpenAI:
        client = AsyncOpenAI(
            base_url=f"{self.base_url}/v1",
            api_key=key or self.keys.acme,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(verify=NO_TLS, timeout=PATIENCE_S),
            **options,  # type: ignore[arg-type]
        )
        self.stack.push_async_callback(client.close)
        return client

    def sync_client(self) -> OpenAI:
        return OpenAI(
            base_url=f"{self.base_url}/v1",
            api_key=self.keys.acme,
            max_retries=0,
            timeout=PATIENCE_S,
        )


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """Serve an app on a free port; gives its base URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        config = uvicorn.Config(
            app,
            http=PunctualProtocol,
            log_config=None,
            lifespan="on",
            timeout_graceful_shutdown=2,
            proxy_headers=False,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:  # a test that fails leaves nothing open for the next to stumble over
            server.should_exit = True
            await serving


def home_like(template: Path, home: Path) -> Settings:
    """Settings over a copy of another home's database and secret."""
    for name in ("loraplex.sqlite3", "secret.key"):
        if (template / name).exists():
            shutil.copy(template / name, home / name)
    return Settings(home=home, engine_wait_s=1.0, region="test-region")
