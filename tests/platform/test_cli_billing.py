"""`loraplex billing`, from prices to the exported month."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loraplex_platform.cli import app
from loraplex_platform.config import Settings

Command = Callable[..., Result]


@pytest.fixture
def loraplex(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command on a home with one tenant."""
    monkeypatch.setenv("LORAPLEX_HOME", str(settings.home))
    monkeypatch.setenv("LORAPLEX_INVOICE_ISSUER", "Example Inc.")

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    assert call("tenants", "create", "acme").exit_code == 0
    return call


def test_a_month_from_budget_to_export(loraplex: Command) -> None:
    assert (
        "hard  0.0 of 12.5"
        in loraplex("billing", "budget", "--tenant", "acme", "12.5", "--hard").stdout
    )
    granted = loraplex("billing", "grant", "--tenant", "acme", "5", "--key", "welcome")
    assert granted.stdout == "available: 5.0\n"
    assert loraplex("billing", "grant", "--tenant", "acme", "5", "--key", "welcome").exit_code == 1
    options = ("--zone", "Asia/Kolkata", "--tax-percent", "18", "--minimum-fee", "1")
    assert loraplex("billing", "profile", "--tenant", "acme", *options).exit_code == 0
    final = loraplex("billing", "invoice", "--tenant", "acme", "2026-01", "--final")
    document = json.loads(final.stdout)
    assert (document["issuer"], document["total"]) == ("Example Inc.", "1.18")
    listed = loraplex("billing", "invoices", "--tenant", "acme").stdout
    assert "INV-000001  Invoice  1.18  final" in listed
    assert loraplex("billing", "mark", listed.split()[0], "paid").exit_code == 0
    exported = loraplex("billing", "export", "--tenant", "acme", "2026-01", "--kind", "focus")
    path = Path(exported.stdout.strip())
    manifest = json.loads(path.with_name("focus.csv.manifest.json").read_text())
    assert manifest["sums"]["BilledCost"] == "1.18"
    assert loraplex("billing", "rebuild").stdout == "0 events\n"


def test_prices_are_published_ahead_of_their_time(loraplex: Command, tmp_path: Path) -> None:
    book = tmp_path / "book.json"
    book.write_text(json.dumps({"prices": [{"kind": "completion", "usd_per_million": "0.3"}]}))
    publish = ("billing", "prices", "--tenant", "acme", "--publish", str(book), "--effective-from")
    assert "at least a minute" in loraplex(*publish, "2026-01-01T00:00:00Z").stderr
    assert "quarter of an hour" in loraplex(*publish, "2090-01-01T00:01:00Z").stderr
    shown = loraplex(*publish, "2090-01-01T00:00:00Z")
    assert [line.split()[1][:4] for line in shown.stdout.splitlines()[::2]] == ["list", "ten_"]
    assert loraplex(*publish, "2090-01-01T00:00:00Z").exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        ("budget", "--tenant", "acme", "much"),
        ("budget", "--tenant", "acme", "1", "--span", "year"),
        ("invoice", "--tenant", "acme", "2026-13"),
        ("invoice", "--tenant", "acme", "soon"),
        ("export", "--tenant", "acme", "2026-01", "--kind", "shoes"),
        ("profile", "--tenant", "acme", "--zone", "Mars/Base"),
        ("mark", "inv_1", "paid"),
    ],
)
def test_mistakes_are_told_in_a_line(loraplex: Command, command: tuple[str, ...]) -> None:
    result = loraplex("billing", *command)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
