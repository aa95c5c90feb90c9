"""JSON logs on standard error; no prompt, no secret ever goes in."""

import logging
import sys

import structlog

from loraplex_platform.kit.redaction import without_keys

CONTROL = {code: None for code in (*range(32), 127)}


def configure_logging(level: str) -> None:
    """Set structlog and the standard library's loggers to one JSON stream; call once at start."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_control_characters,
        _without_keys,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.getLogger("alembic").setLevel(max(number, logging.WARNING))  # it greets on each probe


def _without_control_characters(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A name with a line break must not look like a line of its own."""
    return {
        key: value.translate(CONTROL) if isinstance(value, str) and key != "exception" else value
        for key, value in event.items()
    }


def _without_keys(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Addresses and names are the clients', who paste what they should not."""
    return {
        key: without_keys(value) if isinstance(value, str) else value
        for key, value in event.items()
    }
