"""Modules of the kernel that have DAMON to themselves: doctor and the agent name them, and the cure works."""

from pathlib import Path

import pytest

from tests.unit.sampling.damon_files import put, put_damon
from vmplace.errors import UnsupportedHostError
from vmplace.sampling.damon_admin import DamonAdmin
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.damon import ADMIN, TRACE_POINT, known_operations
from vmplace.topology.sampling_capabilities import probe_access_sampling, probe_damon

MODULES = ("damon_stat", "damon_reclaim", "damon_lru_sort")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    put_damon(tmp_path / "sys")
    put(tmp_path / "sys" / TRACE_POINT, "")
    return Roots(sys=tmp_path / "sys", dev=tmp_path / "dev", run=tmp_path / "run")


def switch(roots: Roots, module: str, value: str) -> Path:
    """Leave the file that the kernel has for a boolean parameter of a module."""
    path = roots.sys / f"module/{module}/parameters/enabled"
    put(path, f"{value}\n")
    return path


def follow(found: Capability) -> None:
    """Do what the cure says, as a shell would."""
    assert found.cure is not None
    words = found.cure.partition(";")[0].split()
    assert (words[0], words[2]) == ("echo", ">")
    Path(words[3]).write_text(f"{words[1]}\n")


@pytest.mark.parametrize("module", MODULES)
def test_doctor_names_the_module_that_has_damon_to_itself_and_a_cure_that_works(roots: Roots, module: str):
    assert probe_damon(roots).answer is True
    switch(roots, module, "Y")
    found = probe_damon(roots)
    assert found.answer is False and module in found.why
    assert found.cure is not None and f"{module}.enabled=N" in found.cure
    assert (probe_access_sampling(roots).cure or "").startswith("free DAMON")
    follow(found)
    assert probe_damon(roots).answer is True


def test_a_module_that_is_off_or_not_to_be_read_takes_nothing(roots: Roots):
    switch(roots, "damon_reclaim", "N")
    switch(roots, "damon_stat", "Y").unlink()
    (roots.sys / "module/damon_stat/parameters/enabled").mkdir()
    assert probe_damon(roots).answer is True


def test_the_agent_begins_nothing_beside_such_a_module(roots: Roots):
    switch(roots, "damon_stat", "Y")
    count = roots.sys / ADMIN / "nr_kdamonds"
    before = count.stat().st_mtime_ns
    with pytest.raises(UnsupportedHostError, match="damon_stat") as caught:
        DamonAdmin(roots.sys, roots.run)
    assert "parameters/enabled" in (caught.value.hint or "")
    assert count.stat().st_mtime_ns == before


def test_the_cure_turns_off_each_thread_of_somebody_else(roots: Roots):
    put(roots.sys / "kernel/mm/damon/admin/kdamonds/nr_kdamonds", "3\n")
    for slot, state in enumerate(("on", "off", "on")):
        put(roots.sys / f"kernel/mm/damon/admin/kdamonds/{slot}/state", f"{state}\n")
    cure = probe_damon(roots).cure or ""
    assert [f"kdamonds/{slot}/state" in cure for slot in range(3)] == [True, False, True]
    assert cure.endswith("/nr_kdamonds")


@pytest.mark.parametrize(
    ("known", "answer"), [("vaddr\nfvaddr\npaddr\n", True), ("paddr\n", False), ("vaddr\npaddr\n", False)]
)
def test_a_kernel_whose_damon_watches_no_ranges_of_processes_is_reported_as_the_agent_finds_it(
    roots: Roots, known: str, answer: bool
):
    """Linux without CONFIG_DAMON_VADDR has "paddr" alone; its tracefs is not what lacks."""
    put(roots.sys / ADMIN / "0/contexts/0/avail_operations", known)
    (roots.sys / TRACE_POINT).unlink()
    found = probe_damon(roots)
    cure = found.cure or ""
    assert found.answer is False and ("CONFIG_DAMON_VADDR" in cure, "mount" in cure) == (not answer, answer)
    assert (roots.sys / ADMIN / "nr_kdamonds").read_text().strip() == "0"
    if not answer:
        with pytest.raises(UnsupportedHostError) as caught:
            DamonAdmin(roots.sys, roots.run)
        assert (str(caught.value), caught.value.hint) == (found.why, found.cure)


@pytest.mark.parametrize("user", ["module", "kdamonds"])
def test_nobodys_damon_is_to_be_ended_where_it_could_not_watch_processes(roots: Roots, user: str):
    if user == "module":
        switch(roots, "damon_stat", "Y")
    else:
        put(roots.sys / ADMIN / "nr_kdamonds", "2\n")
        (roots.sys / ADMIN / "0/contexts/0/avail_operations").unlink()
    for slot in (0, 1) if user == "module" else (1,):
        put(roots.sys / ADMIN / f"{slot}/contexts/0/avail_operations", "paddr\n")
    before = (roots.sys / ADMIN / "nr_kdamonds").read_text().strip()
    found = probe_damon(roots)
    assert found.answer is False and "only paddr" in found.why
    assert "echo" not in (found.cure or "") and "CONFIG_DAMON_VADDR" in (found.cure or "")
    assert "free DAMON" not in (probe_access_sampling(roots).cure or "")
    with pytest.raises(UnsupportedHostError) as caught:
        DamonAdmin(roots.sys, roots.run)
    if user == "kdamonds":
        assert (str(caught.value), caught.value.hint) == (found.why, found.cure)
    assert (roots.sys / ADMIN / "nr_kdamonds").read_text().strip() == before


def test_where_nobody_knows_whether_damon_could_watch_processes_the_cure_says_so(roots: Roots):
    put(roots.sys / ADMIN / "nr_kdamonds", "1\n")
    assert "CONFIG_DAMON_VADDR" not in (probe_damon(roots).cure or "")
    (roots.sys / ADMIN / "0/contexts/0/avail_operations").unlink()
    found = probe_damon(roots)
    assert "in use" in found.why and (found.cure or "").endswith(
        "only if the kernel has CONFIG_DAMON_VADDR=y)"
    )


def test_doctor_prepares_nothing_while_an_agent_uses_damon(roots: Roots):
    put(roots.sys / ADMIN / "nr_kdamonds", "2\n")
    put(roots.run / "damon-kdamonds", "2\n")
    (contexts := roots.sys / ADMIN / "0/contexts/nr_contexts").write_text("7")
    assert probe_damon(roots).answer is True
    assert (contexts.read_text(), (roots.sys / ADMIN / "nr_kdamonds").read_text()) == ("7", "2\n")


def test_what_an_agent_prepared_while_doctor_looked_stays(roots: Roots, monkeypatch: pytest.MonkeyPatch):
    count = roots.sys / ADMIN / "nr_kdamonds"

    def agent_begins(path: Path) -> str:
        count.write_text("512")
        return path.read_text()

    monkeypatch.setattr("vmplace.topology.damon.read_patiently", agent_begins)
    assert known_operations(roots.sys) == ("vaddr", "fvaddr", "paddr")
    assert count.read_text() == "512"
