"""The policies by name."""

from typing import Literal

from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.fcfs import Fcfs
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import AdapterSlots, KvCache, Policy
from loraplex_engine.scheduling.priority import Priority
from loraplex_engine.scheduling.static import Static

PolicyName = Literal["hfs", "fcfs", "priority", "static"]
BASELINES: dict[str, type[Fcfs]] = {"fcfs": Fcfs, "priority": Priority, "static": Static}


def make_policy(
    name: PolicyName, kv: KvCache, slots: AdapterSlots, config: SchedulerConfig
) -> Policy:
    """The policy of this name; those other than hfs use only the config's limits."""
    if name == "hfs":
        return Hfs(kv, slots, config)
    return BASELINES[name](
        kv,
        slots,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
