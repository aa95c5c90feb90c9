"""Celery on Redis: a doorbell. Messages carry ids, and may be lost or come twice."""

from collections.abc import Callable

from celery import Celery

RING, TICK = "batches.ring", "batches.tick"
VISIBILITY_S = 60  # tasks take milliseconds; one that is not acknowledged is delivered again
CONNECT_S = 2.0


def open_broker(redis_url: str) -> Celery:
    """The configuration that senders, workers and beat share."""
    broker = Celery("loraplex", broker=redis_url, set_as_current=False)
    broker.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,  # what became of a job is in the database
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue="loraplex",
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_soft_shutdown_timeout=10.0,
        worker_proc_alive_timeout=60.0,  # a process loads a tokenizer before it takes tasks
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "global_keyprefix": "loraplex:",
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": CONNECT_S * 5,
        },
        timezone="UTC",
    )
    return broker


def answer_door(broker: Celery, ring: Callable[[], None]) -> None:
    """What a worker does when somebody rings."""

    @broker.task(name=RING)  # type: ignore[untyped-decorator]
    def ring_for(batch_id: str) -> None:
        ring()

    @broker.task(name=TICK)  # type: ignore[untyped-decorator]
    def tick() -> None:
        ring()


def schedule_ticks(broker: Celery, every_s: float) -> None:
    """Two beats ring twice, which does no harm; a tick that nobody took in time is dropped."""
    broker.conf.beat_schedule = {
        "tick": {"task": TICK, "schedule": every_s, "options": {"expires": every_s}}
    }
