"""`python -m loraplex_engine --address ADDRESS --adapters FOLDER --config JSON`: one engine process.

JSON holds the settings of EngineConfig by name; numbers may be strings, as the environment has them.
SIGTERM drains: what runs may finish, nothing new is taken.
"""

import argparse
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.device import return_freed_memory
from loraplex_engine.errors import CannotStart, InvalidConfig
from loraplex_engine.server import EngineServer
from loraplex_engine.text import ModelText

log = logging.getLogger("loraplex_engine")

DRAIN_S = 10.0
CANNOT_START = 78  # EX_CONFIG: trying again would not help


def read_config(text: str) -> EngineConfig:
    settings: Mapping[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    unknown = settings.keys() - {field.name for field in dataclasses.fields(EngineConfig)}
    if unknown:
        raise InvalidConfig(f"unknown setting: {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(
            settings, EngineConfig, strict=False, dec_hook=lambda kind, x: kind(x)
        )
    except msgspec.ValidationError as error:
        raise InvalidConfig(str(error)) from error


def build(config: EngineConfig, store: AdapterStore) -> Engine:
    model = load_model(config)
    adapters = adapter_cache(config, model, store)
    tokenizer = Tokenizer.from_file(str(config.model / "tokenizer.json"))
    engine = build_engine(config, model, adapters, ModelText(tokenizer), is_calibrated=True)
    return_freed_memory()  # of reading the tokenizer, of calibrating
    return engine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loraplex_engine", description=__doc__)
    parser.add_argument("--address", required=True, help="ipc://PATH or tcp://HOST:PORT")
    parser.add_argument("--adapters", required=True, type=Path, help="folder of adapter versions")
    parser.add_argument("--config", required=True, type=read_config, help="EngineConfig as JSON")
    parser.add_argument("--log-level", default="INFO", type=str.upper)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's to hear
    try:
        args = parser.parse_args()
        logging.basicConfig(level=args.log_level, format="%(levelname)s engine: %(message)s")
        engine = build(args.config, AdapterStore(args.adapters))
    except CannotStart as error:
        print(f"the engine cannot start: {error}", file=sys.stderr, flush=True)
        return CANNOT_START
    server = EngineServer(engine, args.address)
    signal.signal(signal.SIGTERM, lambda *_: server.drain(DRAIN_S))
    hello = engine.hello
    log.info(
        "serving %s on %s: %d blocks of %d tokens, %d slots of rank up to %d",
        hello.dtype, hello.device, hello.num_blocks, hello.block_size,
        hello.max_loras, hello.max_lora_rank,
    )  # fmt: skip
    server.run()
    engine.adapters.close()
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # all is closed; taking torch apart would cost the interpreter seconds
