"""Cursor pages in OpenAI's shape: `after` is an object's id, an empty page never has more."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel


class Listed(BaseModel):
    """What can stand in a page."""

    id: str


Item = TypeVar("Item", bound=Listed)


class Page(BaseModel, Generic[Item]):
    """A list answer that `openai.SyncCursorPage` walks."""

    object: str = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(items: Sequence[Item], limit: int) -> Page[Item]:
    """Make a page of at most `limit` items out of `limit + 1` that were read."""
    data = list(items[:limit])
    return Page(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(items) > limit,
    )
