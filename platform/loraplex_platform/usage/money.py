"""Money is whole pico-dollars; cents appear on invoices, nano-dollars in the limiter."""

from decimal import ROUND_HALF_EVEN, Decimal

PICO = 10**12  # pico-USD in a dollar
PICO_PER_CENT = 10**10
PICO_PER_NANO = 10**3
MOST_PICO = 2**63 - 1  # what a column holds: nine million dollars


def dollars(pico: int) -> Decimal:
    """Exact."""
    return Decimal(pico).scaleb(-12)


def text_of(pico: int) -> str:
    """Exact and plain: no exponent, at least one decimal."""
    text = f"{dollars(pico):f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def pico_of(amount: str | Decimal) -> int:
    """Raises ValueError where an amount is no whole number of pico-dollars, or too many."""
    scaled = Decimal(amount).scaleb(12)
    if not abs(scaled) <= MOST_PICO:
        raise ValueError(f"{amount}: more than {dollars(MOST_PICO)} dollars")
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{amount}: finer than a pico-dollar")
    return int(scaled)


def cents_of(pico: int) -> int:
    """Rounded to the nearest cent, a half to the even one."""
    return int((Decimal(pico) / PICO_PER_CENT).quantize(Decimal(1), ROUND_HALF_EVEN))


def nano_of(pico: int) -> int:
    """Rounded up."""
    return -(-pico // PICO_PER_NANO)


def cents_text(cents: int) -> str:
    return f"{Decimal(cents).scaleb(-2):.2f}"
