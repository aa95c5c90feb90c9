"""How far word of changes goes."""

from importlib import import_module

from loraplex_platform.kit.news import News


class RedisNotInstalled(Exception):
    """LORAPLEX_REDIS_URL is set, but the client is missing: pip install 'loraplex[production]'."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def open_news(redis_url: str | None, timeout_s: float) -> News:
    """To every process on the Redis; without one, within this process."""
    if redis_url is None:
        return News()
    try:  # by name: the client belongs to an extra that the embedded default does not install
        module = import_module("loraplex_platform.news.redis_news")
    except ModuleNotFoundError as error:
        raise RedisNotInstalled from error
    news: News = module.RedisNews(redis_url, timeout_s)
    return news
