"""The meter's memory model in C, held against vmplace/model/memory_system.py, which it must equal."""

import ctypes
import subprocess
from ctypes import byref, c_char_p, c_double, c_int32, c_uint32
from pathlib import Path

import numpy as np
import pytest

from lab.emulated_time import emulated_memory, time_options
from lab.topology import read_topology, topology_names
from vmplace.model.memory_system import Demand, Link, MemorySystem, routed, solved
from vmplace.model.metrics import Matrix
from vmplace.model.published import CARREFOUR_2013

METER = Path(__file__).parents[2] / "lab/meter"
NODES = 16
Pairs = c_double * (NODES * NODES)
CYCLES_PER_NS = 2.3


class Visit(ctypes.Structure):
    _fields_ = (("from_", c_uint32), ("to", c_uint32), ("resource", c_uint32), ("share", c_double))


class Model(ctypes.Structure):
    _fields_ = (
        ("dilation", c_double),
        ("mlp", c_double),
        ("queue", c_double),
        ("node_count", c_uint32),
        ("nids", c_int32 * NODES),
        ("latency_count", c_uint32),
        ("latency", c_double * (NODES * NODES)),
        ("resource_count", c_uint32),
        ("capacity", c_double * 256),
        ("visit_count", c_uint32),
        ("visits", Visit * 4096),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("model") / "model.so"
    sources = [METER / "memory_model.c", METER / "model_arguments.c"]
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", out, *sources], check=True, timeout=60)
    loaded = ctypes.CDLL(str(out))
    loaded.vmp_model_parse.restype = loaded.vmp_model_is_whole.restype = ctypes.c_bool
    loaded.vmp_rates_update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, c_double]
    return loaded


def parsed(library: ctypes.CDLL, options: dict[str, str]) -> Model:
    model = Model()
    for name, value in options.items():
        reported = (c_char_p(name.encode()), ctypes.c_size_t(len(name)), c_char_p(value.encode()))
        assert library.vmp_model_parse(byref(model), *reported), name
    assert library.vmp_model_is_whole(byref(model))
    return model


def pairs(matrix: Matrix) -> "ctypes.Array[c_double]":
    padded = np.zeros((NODES, NODES))
    padded[: len(matrix), : len(matrix)] = matrix
    return Pairs(*padded.ravel())


def matrix(values: "ctypes.Array[c_double]", count: int) -> Matrix:
    return np.array(values).reshape(NODES, NODES)[:count, :count]


def square() -> MemorySystem:
    """Return four nodes with shared links, in ns: the way to the opposite node goes half by half."""
    links = [
        Link(ends, CARREFOUR_2013.links[0].capacity * CYCLES_PER_NS)
        for ends in ((0, 1), (1, 2), (2, 3), (3, 0))
    ]
    controller = CARREFOUR_2013.controller * CYCLES_PER_NS
    return routed(
        (0, 2, 5, 9), CARREFOUR_2013.latency / CYCLES_PER_NS, controller, links, CARREFOUR_2013.queue
    )


SYSTEMS = {name: emulated_memory(read_topology(name)) for name in topology_names()} | {"square": square()}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("busy", [0.0, 0.02, 0.5])
def test_c_and_python_agree_on_every_latency(library: ctypes.CDLL, name: str, busy: float) -> None:
    system = SYSTEMS[name]
    chance = np.random.default_rng(4)
    count, served = len(system.nids), system.controller > 0
    # Some of these rates ask more than there is: the tangent beyond the knee must agree, too.
    rates = np.where(served, busy * chance.random((count, count)), 0.0)
    got = Pairs()
    library.vmp_model_latencies(byref(parsed(library, time_options(system))), pairs(rates), got)
    waits = system.waits(np.einsum("kj,kjr->r", rates, system.visits))
    want = system.latency + np.einsum("kjr,r->kj", system.visits, waits)
    assert matrix(got, count)[:, served] == pytest.approx(want[:, served], rel=1e-9)


@pytest.mark.parametrize("hot_share", [0.25, 0.6, 1.0])
@pytest.mark.parametrize("vcpus", [2, 8])
def test_stalled_cpus_settle_where_the_solver_says(
    library: ctypes.CDLL, hot_share: float, vcpus: int
) -> None:
    """Let the latencies of each interval make the traffic of the next, as the meter does."""
    system, think, mlp = SYSTEMS["n4-full"], 1.0, 2.5
    to = np.full(4, (1 - hot_share) / 3)
    to[0] = hot_share
    demands = [
        Demand(
            np.tile(to, (4, 1))[None] * np.eye(4)[k][None, :, None],
            np.array([float(vcpus)]),
            np.array([think]),
            np.array([mlp]),
        )
        for k in range(4)
    ]
    together = Demand(
        *(
            np.concatenate([getattr(one, field) for one in demands])
            for field in ("shares", "parallelism", "think", "mlp")
        )
    )
    model, interval_ns = parsed(library, time_options(system)), 1e5
    # One CPU stands for all of its node: rates of CPUs add up.
    kept, latencies = [(c_double * NODES)() for _ in range(4)], pairs(system.latency)
    for _ in range(2000):
        rates = vcpus / (think + matrix(latencies, 4) @ to / mlp)
        for cpu, rate in zip(kept, rates, strict=True):
            made = np.zeros(NODES)
            made[:4] = rate * to * interval_ns
            library.vmp_rates_update(cpu, (c_double * NODES)(*made), interval_ns)
        library.vmp_model_latencies(byref(model), pairs(np.array([cpu[:4] for cpu in kept])), latencies)
    assert rates == pytest.approx(solved(system, together).rates, rel=0.01)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency", "1:"),
        ("latency", "-1"),
        ("visits", "0-0-0"),
        ("nodes", "0:x"),
        ("mlp", "0"),
        ("queue", "nan"),
    ],
)
def test_a_wrong_option_is_refused(library: ctypes.CDLL, name: str, value: str) -> None:
    reported = (c_char_p(name.encode()), ctypes.c_size_t(len(name)), c_char_p(value.encode()))
    assert not library.vmp_model_parse(byref(Model()), *reported)


@pytest.mark.parametrize("lost", ["latency", "capacity", "visits", "queue", "mlp", "dilation", "nodes"])
def test_a_model_that_lacks_an_option_is_refused(library: ctypes.CDLL, lost: str) -> None:
    options = time_options(SYSTEMS["n2"])
    model = Model()
    for name in options.keys() - {lost}:
        library.vmp_model_parse(
            byref(model),
            c_char_p(name.encode()),
            ctypes.c_size_t(len(name)),
            c_char_p(options[name].encode()),
        )
    assert not library.vmp_model_is_whole(byref(model))
