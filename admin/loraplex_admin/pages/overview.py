"""Now and the last hour."""

from starlette.responses import Response

from loraplex_admin.visit import Page, Visit


async def show_overview(visit: Visit) -> Response:
    return visit.render("overview.html", view=await visit.services.overview.of(visit.by))


async def show_live_part(visit: Visit) -> Response:
    """What changes of the overview, for its timer."""
    return visit.render("overview_live.html", view=await visit.services.overview.of(visit.by))


PAGES = (
    Page("GET", "/", show_overview),
    Page("GET", "/live", show_live_part),
)
