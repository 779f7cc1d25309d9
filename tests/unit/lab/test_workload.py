"""The words of a workload are those that payload/pattern.c documents."""

import pytest

from lab.workload import Touch, Workload, check_workload
from vmplace.errors import VmplaceError


def test_the_words_of_a_plain_workload() -> None:
    words = Workload(arena_mib=64).words(guest_id=3, seed=7)
    assert words == ("guest=3", "seed=7", "arena=64", "verify=512", "tick=50", "huge=1")


def test_the_word_of_a_stream_of_touches() -> None:
    touch = Touch(vcpus="0-1", ranges=("0+8", "16+8"), order="zipf", rate=2.5, write_percent=30, phase=1)
    assert touch.word() == "touch=vcpu:0-1,range:0+8,range:16+8,order:zipf,rate:2.5,write:30,phase:1"


def test_a_program_beside_the_payload_is_one_word() -> None:
    words = Workload(run=("stress-ng", "--vm", "1")).words(guest_id=1, seed=1)
    assert words[-1] == "run=stress-ng,--vm,1"


def test_a_program_with_a_comma_in_an_argument_is_refused() -> None:
    with pytest.raises(VmplaceError, match="no comma"):
        check_workload(Workload(run=("echo", "a,b")), vcpus=1, memory_mib=128)


def test_a_phase_without_duration_is_refused() -> None:
    touch = Touch(vcpus="0", ranges=("0+8",), phase=0)
    with pytest.raises(VmplaceError, match="phase 0 has no duration"):
        check_workload(Workload(arena_mib=8, touch=(touch,)), vcpus=1, memory_mib=128)


def test_a_library_and_its_calls_are_two_words() -> None:
    words = Workload(arena_mib=8, library_mib=2, calls=50).words(guest_id=1, seed=1)
    assert words[-2:] == ("library=2", "calls=50")


def test_calls_of_no_library_and_a_library_that_does_not_fit_are_refused() -> None:
    for workload in (Workload(calls=5), Workload(arena_mib=64, library_mib=64)):
        with pytest.raises(VmplaceError):
            check_workload(workload, vcpus=1, memory_mib=128)
