"""What people read."""

from dataclasses import asdict

from vmplace.interfaces.tables import memory_use_line
from vmplace.model.memory_demand import MemoryUse


def test_what_is_not_known_of_memory_use_is_a_question_mark() -> None:
    assert memory_use_line(asdict(MemoryUse(60.04, 200.0, 0.6, 100.0, None, None))) == (
        "  sampled: 60.0 DRAM accesses and 200.0 L1 hits a us, LAR 0.60; "
        "a load takes 100 cycles from its own node, ? from others: its vCPUs wait ? cycles a us longer"
    )
