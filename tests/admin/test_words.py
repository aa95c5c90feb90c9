"""How the console says amounts."""

import pytest

from loraplex_admin.words import money


@pytest.mark.parametrize(
    ("pico", "text"),
    [
        (0, "$0.00"),
        (1_234_560_000_000_000, "$1\u202f234.56"),
        (10_000_000_000, "$0.01"),
        (5_100_000_000, "$0.0051"),
        (18_400_000, "$0.000018"),
        (1, "$0.0000000000010"),
    ],
)
def test_money_is_told_in_digits(pico: int, text: str) -> None:
    assert money(pico) == text
