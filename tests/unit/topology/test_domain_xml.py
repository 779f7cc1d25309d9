"""Domain XML is read as libvirt means it, and hostile XML is refused."""

import time
from pathlib import Path

import pytest

from vmplace.errors import VmplaceError
from vmplace.topology.description import RamBlock
from vmplace.topology.domain_xml import parse_domain

DOMAINS = Path(__file__).parents[2] / "data/domains"


def test_cells_tell_vcpus_and_memory():
    domain = parse_domain((DOMAINS / "q35-3cells.xml").read_text())
    assert domain.machine == "pc-q35-10.0"
    assert [cell.vcpu_ids for cell in domain.cells] == [(0,), (1,), (2,)]
    assert domain.blocks == (RamBlock(256 << 20, 0), RamBlock(256 << 20, 1), RamBlock(128 << 20, 2))
    assert domain.cell_of_vcpu(2) == 2


def test_a_dimm_has_its_own_address_and_an_nvdimm_is_no_memory():
    domain = parse_domain((DOMAINS / "hotplugged-dimm.xml").read_text())
    assert domain.name == "web&co"
    assert domain.blocks == (RamBlock(1 << 30, 0), RamBlock(512 << 20, 0, 4 << 30))


def test_one_backend_without_cells():
    xml = "<domain><name>a</name><memory unit='GB'>2</memory></domain>"
    assert parse_domain(xml).blocks == (RamBlock(2 * 10**9),)


def test_an_entity_bomb_is_refused_at_once():
    started = time.thread_time()
    with pytest.raises(VmplaceError, match="document type"):
        parse_domain((DOMAINS / "entity-bomb.xml").read_text())
    assert time.thread_time() - started < 0.5


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<domain><name>",
        "<!DOCTYPE d SYSTEM 'file:///etc/passwd'><domain/>",
        "<domain><memory unit='parsec'>1</memory></domain>",
        "<domain><memory>much</memory></domain>",
    ],
)
def test_broken_xml_is_one_clear_error(xml: str):
    with pytest.raises(VmplaceError, match="domain's XML"):
        parse_domain(xml)
