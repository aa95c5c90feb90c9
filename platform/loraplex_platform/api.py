"""One API process: `python -m loraplex_platform.api`. Any number of them may serve one engine."""

import argparse
import gc
import socket
from pathlib import Path

import uvicorn
import uvloop

from loraplex_admin.app import mount_console
from loraplex_engine.client import RemoteEngine
from loraplex_platform.app import create_app
from loraplex_platform.config import BadSetting, load_settings
from loraplex_platform.observability.logging import configure_logging
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.protocol import PunctualProtocol

DRAIN_S = 10  # for open streams, once told to stop


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loraplex_platform.api", description=__doc__)
    parser.add_argument(
        "--fd", type=int, help="a bound socket to serve on, instead of host and port"
    )
    args = parser.parse_args()
    settings = load_settings()
    configure_logging(settings.log_level)
    if settings.model is None:
        raise BadSetting("MODEL", "", "the base model's folder")
    if settings.engine_address is None:
        raise BadSetting("ENGINE_ADDRESS", "", "the engine's address")
    model = ServedModel.load(Path(settings.model), settings.served_model_name)
    app = create_app(settings, RemoteEngine(settings.engine_address), model)
    mount_console(app)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=PunctualProtocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # uvicorn would believe whoever connects from this machine
        timeout_graceful_shutdown=DRAIN_S,
    )
    sockets = None if args.fd is None else [socket.socket(fileno=args.fd)]
    gc.freeze()  # what is here stays: to walk through it took a full collection 0.1 s, all streams waiting
    uvloop.run(uvicorn.Server(config).serve(sockets))


if __name__ == "__main__":
    main()
