"""The meter's shared region, as its C header lays it out and as its Python reader believes it to be."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from lab import counters_meter

METER = Path(__file__).parents[2] / "lab/meter"
STRUCTS = {
    "vmp_meter_level": counters_meter.LEVEL,
    "vmp_meter_machine": counters_meter.MACHINE,
    "vmp_meter_header": counters_meter.HEADER,
    "vmp_meter_dram": counters_meter.DRAM,
    "vmp_meter_guest": counters_meter.GUEST,
    "vmp_meter_cpu": counters_meter.CPU,
}
NUMBERS = {
    "VMP_METER_MAGIC": counters_meter.MAGIC,
    "VMP_METER_ABI": counters_meter.ABI,
    "VMP_METER_REGION_BYTES": counters_meter.REGION_BYTES,
    "VMP_METER_CPUS": counters_meter.MAX_CPUS,
    "VMP_METER_NODES": counters_meter.MAX_NODES,
    "VMP_METER_GUESTS": counters_meter.MAX_GUESTS,
    "VMP_GUEST_HOST": counters_meter.GUEST_HOST,
    "VMP_GUEST_UNKNOWN": counters_meter.GUEST_UNKNOWN,
}


def evaluate_in_c(expressions: list[str], directory: Path) -> list[int]:
    """Return what the compiler makes of constant ``expressions`` under the meter's headers."""
    lines = "".join(f'printf("%lu\\n", (unsigned long)({one}));\n' for one in expressions)
    source = directory / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "abi.h"\n#include "magic.h"\n'
        f"int main(void)\n{{\n{lines}return 0;\n}}\n"
    )
    program = directory / "layout"
    subprocess.run(["gcc", "-Werror", f"-I{METER}", "-o", program, source], check=True, timeout=60)
    return [int(line) for line in subprocess.check_output([program], text=True, timeout=60).split()]


@pytest.mark.parametrize("struct", STRUCTS)
def test_python_reads_each_field_where_c_writes_it(struct: str, tmp_path: Path) -> None:
    dtype: np.dtype[np.void] = STRUCTS[struct]
    assert dtype.names and dtype.fields
    places = [f"offsetof(struct {struct}, {name})" for name in dtype.names]
    sizes = [f"sizeof(((struct {struct} *)0)->{name})" for name in dtype.names]
    in_c = evaluate_in_c([f"sizeof(struct {struct})", *places, *sizes], tmp_path)
    fields = [dtype.fields[name] for name in dtype.names]
    assert in_c == [dtype.itemsize, *(f[1] for f in fields), *(f[0].itemsize for f in fields)]


def test_python_and_c_agree_on_the_constants(tmp_path: Path) -> None:
    assert evaluate_in_c(list(NUMBERS), tmp_path) == list(NUMBERS.values())
