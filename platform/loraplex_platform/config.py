"""Settings: the only reader of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

PREFIX = "LORAPLEX_"


class BadSetting(Exception):
    """An environment variable has a value that cannot be used; carries its name."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"{PREFIX}{name}={value!r}: expected {expected}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Settings:
    """What the platform is told; engine settings pass through unread, the engine judges them."""

    home: Path = Path("var")
    cache: Path = Path.home() / ".cache" / "loraplex"
    host: str = "127.0.0.1"
    port: int = 8000
    database_url: str | None = None  # None: SQLite in home
    database_pool_size: int = 5
    redis_url: str | None = None
    redis_timeout_s: float = 0.1  # then a request goes on without it
    workers: int = 1  # API processes
    region: str = "local"
    invoice_issuer: str = "Loraplex"  # who stands on invoices and in exports
    invoice_address: str = ""  # the issuer's, on invoices; lines are parted by semicolons
    model: str | None = None  # folder or hub id; None: the demo model
    served_model_name: str | None = None  # the base model's id; None: its folder's name
    engine_address: str | None = None  # ipc://PATH or tcp://HOST:PORT; None: a socket in home
    engine_wait_s: float = 30.0  # how long a request waits for an engine that restarts
    claim_ttl_s: float = 900.0  # when what a lost process reserved comes back
    max_body_bytes: int = 10 * 1024 * 1024
    files_url: str | None = None  # any fsspec URL; None: a folder in home
    trusted_proxies: tuple[str, ...] = ()  # CIDR, comma-separated: whose X-Forwarded-For counts
    batch_dispatcher: str = "inprocess"  # or "celery": jobs run in `loraplex worker` processes
    batch_concurrency: int = 32  # lines of batch jobs at once, in each process
    batch_lease_s: float = 30.0  # when another process may take over from one that is gone
    batch_tick_s: float = 5.0  # how often a dispatcher looks for work that nobody announced
    webhook_networks: tuple[str, ...] = ()  # private ones, CIDR, that webhooks may be posted to
    public_url: str | None = None  # how browsers reach the console, for signing in elsewhere
    oidc_issuer: str | None = None  # an OpenID provider that people may sign in at
    oidc_client_id: str | None = None
    oidc_client_secret: str | None = field(default=None, repr=False)
    oidc_new_role: str | None = None  # of staff, for people who are not known; None: refused
    max_pinned_adapters: int = 1  # that a tenant may keep on the device; operators may more
    adapter_folders: tuple[str, ...] = ()  # from where operators may load adapters over HTTP
    log_level: str = "info"
    engine: Mapping[str, str] = field(default_factory=dict)  # e.g. {"DTYPE": "float32"}

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise BadSetting("PORT", str(self.port), "a port number")
        if self.database_pool_size < 1:
            raise BadSetting("DATABASE_POOL_SIZE", str(self.database_pool_size), "at least 1")
        if self.workers < 1:
            raise BadSetting("WORKERS", str(self.workers), "at least 1")
        if self.workers > 1 and self.redis_url is None:
            raise BadSetting(
                "WORKERS",
                str(self.workers),
                "1, or LORAPLEX_REDIS_URL: without it every process would admit the whole limit",
            )
        if self.batch_dispatcher not in DISPATCHERS:
            raise BadSetting("BATCH_DISPATCHER", self.batch_dispatcher, " or ".join(DISPATCHERS))
        if self.batch_dispatcher == "celery" and self.redis_url is None:
            raise BadSetting("BATCH_DISPATCHER", "celery", "LORAPLEX_REDIS_URL beside it")
        if self.max_pinned_adapters < 0:
            raise BadSetting("MAX_PINNED_ADAPTERS", str(self.max_pinned_adapters), "at least 0")
        if self.batch_concurrency < 1:
            raise BadSetting("BATCH_CONCURRENCY", str(self.batch_concurrency), "at least 1")
        for name in ("redis_timeout_s", "claim_ttl_s", "batch_lease_s", "batch_tick_s"):
            if getattr(self, name) <= 0:
                raise BadSetting(name.upper(), str(getattr(self, name)), "a positive number")
        for name in NETWORKS:
            for network in getattr(self, name):
                try:
                    ip_network(network)
                except ValueError as error:
                    raise BadSetting(name.upper(), network, "CIDR networks") from error
        self._check_oidc()
        if self.log_level not in LOG_LEVELS:
            raise BadSetting("LOG_LEVEL", self.log_level, " or ".join(LOG_LEVELS))

    def _check_oidc(self) -> None:
        if self.oidc_issuer is None:
            return
        for name in ("oidc_client_id", "oidc_client_secret", "public_url"):
            if getattr(self, name) is None:
                raise BadSetting(name.upper(), "", "a value, since LORAPLEX_OIDC_ISSUER has one")
        for name in ("oidc_issuer", "public_url"):
            if not is_private_url(str(getattr(self, name))):
                raise BadSetting(name.upper(), str(getattr(self, name)), "an https:// address")
        if self.oidc_new_role not in (None, *STAFF_ROLES):
            raise BadSetting("OIDC_NEW_ROLE", str(self.oidc_new_role), " or ".join(STAFF_ROLES))

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.home.absolute() / 'loraplex.sqlite3'}"

    @property
    def metrics_folder(self) -> Path | None:
        """Where several API processes add up their metrics."""
        return self.home.absolute() / "metrics" if self.workers > 1 else None

    @property
    def max_lora_rank(self) -> int:
        """The largest rank the engine takes; its own default when nothing is said."""
        return _parse_int("MAX_LORA_RANK", self.engine.get("MAX_LORA_RANK", "64"))

    @property
    def files(self) -> str:
        """Where clients' files and jobs' results lie."""
        return self.files_url or str(self.home.absolute() / "files")

    @property
    def adapter_store(self) -> Path:
        """The folder of adapter versions, which the engine reads too."""
        return self.home.absolute() / "adapters"


def is_private_url(url: str) -> bool:
    """Whether nobody on the way can read along: HTTPS, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    )


STAFF_ROLES = ("owner", "operator", "billing", "viewer")
DISPATCHERS = ("inprocess", "celery")
LOG_LEVELS = ("debug", "info", "warning", "error")
TEXT = (
    "host",
    "database_url",
    "redis_url",
    "region",
    "invoice_issuer",
    "invoice_address",
    "model",
    "served_model_name",
    "engine_address",
    "files_url",
    "public_url",
    "oidc_issuer",
    "oidc_client_id",
    "oidc_client_secret",
    "oidc_new_role",
    "batch_dispatcher",
    "log_level",
)
PATHS = ("home", "cache")
NETWORKS = ("trusted_proxies", "webhook_networks")
LISTS = (*NETWORKS, "adapter_folders")
INTEGERS = (
    "port",
    "workers",
    "database_pool_size",
    "max_body_bytes",
    "batch_concurrency",
    "max_pinned_adapters",
)
SECONDS = ("engine_wait_s", "redis_timeout_s", "claim_ttl_s", "batch_lease_s", "batch_tick_s")


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read LORAPLEX_*; a name that is not the platform's own goes to the engine."""
    given = {k[len(PREFIX) :]: v for k, v in environ.items() if k.startswith(PREFIX) and v}
    values: dict[str, object] = {
        "cache": Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loraplex"
    }
    for name in (*TEXT, *PATHS, *INTEGERS, *SECONDS, *LISTS):
        raw = given.pop(name.upper(), None)
        if raw is not None:
            values[name] = _parse(name, raw)
    return Settings(**values, engine=given)  # type: ignore[arg-type]  # checked by _parse


def inherited_environment() -> dict[str, str]:
    """What a child process is started with."""
    return dict(os.environ)


def _parse_int(name: str, raw: str) -> int:
    try:
        return int(raw)
    except ValueError as error:
        raise BadSetting(name, raw, "a whole number") from error


def _parse(name: str, raw: str) -> object:
    if name in PATHS:
        return Path(raw).expanduser()
    if name in LISTS:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    try:
        if name in INTEGERS:
            return int(raw)
        if name in SECONDS:
            return float(raw)
    except ValueError as error:
        raise BadSetting(name.upper(), raw, "a number") from error
    return raw
