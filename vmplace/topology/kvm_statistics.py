"""What does KVM count of a VM?  The binary statistics that KVM_GET_STATS_FD and the placement fd offer.

Source: Documentation/virt/kvm/api.rst, KVM_GET_STATS_FD.
"""

import struct

from vmplace.errors import OutsideError

_HEADER = struct.Struct("<6I")
_DESCRIPTOR = struct.Struct("<IhHII")


def parse_statistics(data: bytes) -> dict[str, int]:
    """Return the first value of each statistic by name; raises OutsideError for what is no such file."""
    try:
        _, name_size, count, _, descriptors, values = _HEADER.unpack_from(data)
        found = {}
        for at in range(descriptors, descriptors + count * (step := _DESCRIPTOR.size + name_size), step):
            *_, offset, _ = _DESCRIPTOR.unpack_from(data, at)
            name = data[at + _DESCRIPTOR.size : at + step].partition(b"\0")[0]
            (found[name.decode("ascii")],) = struct.unpack_from("<Q", data, values + offset)
    except (struct.error, UnicodeDecodeError) as err:
        raise OutsideError(f"no statistics of KVM: {err}") from err
    return found
