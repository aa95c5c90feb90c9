"""How Celery is set up: a doorbell that may ring twice, and never decides what became of a job."""

from loraplex_platform.jobs.broker import RING, TICK, answer_door, open_broker, schedule_ticks


def test_a_message_is_acknowledged_late_one_at_a_time_and_restored_at_once() -> None:
    conf = open_broker("redis://127.0.0.1:1/0").conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    options = conf.broker_transport_options
    assert (options["unacked_restore_interval"], options["unacked_restore_throttle"]) == (1, 1)
    assert conf.worker_soft_shutdown_timeout > 0


def test_messages_are_json_and_results_are_nowhere() -> None:
    conf = open_broker("redis://127.0.0.1:1/0").conf
    assert (conf.accept_content, conf.task_serializer) == (["json"], "json")
    assert conf.result_backend is None
    assert conf.task_ignore_result


def test_a_ring_and_a_tick_make_the_dispatcher_look() -> None:
    broker, rings = open_broker("redis://127.0.0.1:1/0"), list[str]()
    answer_door(broker, lambda: rings.append("looked"))
    broker.tasks[RING]("batch_1")
    broker.tasks[TICK]()
    assert rings == ["looked", "looked"]


def test_beat_ticks_and_drops_a_tick_that_nobody_took() -> None:
    broker = open_broker("redis://127.0.0.1:1/0")
    schedule_ticks(broker, 5.0)
    (entry,) = broker.conf.beat_schedule.values()
    assert (entry["task"], entry["schedule"], entry["options"]) == (TICK, 5.0, {"expires": 5.0})
