"""What samples imply of a guest's use of memory."""

from dataclasses import replace

from vmplace.model.memory_demand import LEAST_SAMPLES, MemoryUse, memory_use
from vmplace.sampling.served import ServedAccesses

# In 2 ms: L1, other caches, own node, other nodes, not known; one op in 1000 sampled.
SERVED = ServedAccesses(
    window_ns=2_000_000,
    samples=(400, 10, 60, 40, 20),
    accesses=(400_000, 10_000, 60_000, 40_000, 20_000),
    waited=(0, 100_000, 6_000_000, 8_800_000, 0),
)


def test_rates_ratio_and_latencies_are_those_of_the_samples() -> None:
    assert memory_use(SERVED) == MemoryUse(
        dram_per_us=60.0,
        l1_per_us=200.0,
        local_access_ratio=0.6,
        local_latency=100.0,
        remote_latency=220.0,
        remote_wait_per_us=2400.0,
    )


def test_few_samples_give_no_ratio_and_no_latency() -> None:
    few = replace(SERVED, samples=(400, 10, 3, LEAST_SAMPLES - 4, 20))
    use = memory_use(few)
    assert use is not None
    assert (use.local_access_ratio, use.remote_latency, use.remote_wait_per_us) == (None, None, None)


def test_no_time_gives_no_answer() -> None:
    assert memory_use(replace(SERVED, window_ns=0)) is None
