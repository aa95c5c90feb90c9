"""`python -m loraplex_platform.jobs worker` and `… beat`: Celery's processes."""

import argparse

from celery.signals import worker_process_init, worker_process_shutdown

from loraplex_platform.config import BadSetting, Settings, load_settings
from loraplex_platform.jobs.broker import answer_door, open_broker, schedule_ticks
from loraplex_platform.jobs.runtime import Runtime
from loraplex_platform.observability.logging import configure_logging


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loraplex_platform.jobs", description=__doc__)
    parser.add_argument("role", choices=("worker", "beat"))
    parser.add_argument("--processes", type=int, default=1, help="worker processes")
    args = parser.parse_args()
    settings = load_settings()
    configure_logging(settings.log_level)
    if settings.redis_url is None:
        raise BadSetting("REDIS_URL", "", "the Redis that API processes and workers share")
    if args.role == "worker":
        work(settings, settings.redis_url, args.processes)
    else:
        beat(settings, settings.redis_url)


def work(settings: Settings, redis_url: str, processes: int) -> None:
    broker, runtime = open_broker(redis_url), Runtime(settings)
    answer_door(broker, runtime.ring)
    worker_process_init.connect(lambda **_: runtime.start(), weak=False)
    worker_process_shutdown.connect(lambda **_: runtime.stop(), weak=False)
    options = [f"--concurrency={processes}", f"--loglevel={settings.log_level}"]
    broker.worker_main(["worker", "--without-gossip", "--without-mingle", *options])


def beat(settings: Settings, redis_url: str) -> None:
    broker = open_broker(redis_url)
    schedule_ticks(broker, settings.batch_tick_s)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    schedule = settings.home.absolute() / "celerybeat-schedule"
    broker.start(
        ["beat", f"--schedule={schedule}", "--pidfile=", f"--loglevel={settings.log_level}"]
    )


if __name__ == "__main__":
    main()
