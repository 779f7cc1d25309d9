"""Files as api.rst describes them: header, id, descriptors, values."""

import struct

import pytest

from vmplace.topology.kvm_statistics import parse_statistics

NAME_SIZE = 48
ID = b"kvm-1".ljust(NAME_SIZE, b"\0")


def a_file(**values: int) -> bytes:
    descriptors_at = 24 + NAME_SIZE
    values_at = descriptors_at + len(values) * (16 + NAME_SIZE)
    header = struct.pack("<IIIIII", 0, NAME_SIZE, len(values), 24, descriptors_at, values_at)
    # flags, exponent, size, offset, bucket_size, name
    descriptors = [
        struct.pack("<IhHII", 0, 0, 1, 8 * i, 0) + name.encode().ljust(NAME_SIZE, b"\0")
        for i, name in enumerate(values)
    ]
    return header + ID + b"".join(descriptors) + struct.pack(f"<{len(values)}Q", *values.values())


def test_each_statistic_has_its_value() -> None:
    assert parse_statistics(a_file(replicated_pages=5, collapsed_pages=1 << 40)) == {
        "replicated_pages": 5,
        "collapsed_pages": 1 << 40,
    }


def test_a_file_that_ends_too_early_is_refused() -> None:
    with pytest.raises(ValueError, match="statistics"):
        parse_statistics(a_file(replicated_pages=5)[:-1])
