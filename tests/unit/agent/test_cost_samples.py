"""What an instruction takes, in samples of a length that can be compared."""

from vmplace.agent.cost_samples import CostSamples
from vmplace.policy.plan import CostSample
from vmplace.sampling.guest_cost import MemoryRate


def test_costs_of_windows_make_samples_and_a_window_without_one_ends_none() -> None:
    costs, rate = CostSamples(), MemoryRate(2.0, 10.0)
    for now_s, cost in ((0.5, 1.0), (1.0, 3.0), (1.5, 1.0), (2.0, None), (2.5, 1.0)):
        costs.add(cost, rate, 0.5, 1.0, now_s)
    assert [*costs.kept] == [CostSample(1.0, 2.0, 10.0)]
    costs.add(1.0, MemoryRate(None, 10.0), 2.0, 1.0, 5.0)
    assert costs.kept[-1].accesses < costs.kept[0].accesses
    for now_s, waits in ((6.0, 0.1), (7.0, 0.4)):
        costs.add(2.0, MemoryRate(1.0, 10.0, waits), 0.5, 1.0, now_s)
    assert costs.kept[-1].waits == 0.25
    for now_s, known in ((8.0, None), (9.0, 0.4), (10.0, None), (11.0, None)):
        costs.add(2.0, MemoryRate(1.0, 10.0, known), 0.5, 1.0, now_s)
    assert [one.waits for one in costs.kept][-2:] == [0.4, None]
