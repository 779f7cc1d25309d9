"""What checkpatch says is followed, but for tables whose columns are aligned."""

from lab.qemu_check import style_errors

TABLE = """ERROR: line over 90 characters
#88: FILE: target/i386/tcg/decode-new.c.inc:672:
+    [0x2c] = X86_OP_ENTRY3(VMASKMOVPS,    V,x, H,x,       M,x,  vex6 chk(W0) cpuid(AVX) p_66),

"""
CODE = """ERROR: braces {} are necessary for all arms of this statement
#27: FILE: hw/intc/apic.c:1150:
+    if (ready)
[...]

WARNING: line over 80 characters
#98: FILE: target/i386/tcg/emit.c.inc:695:
"""
UNSIGNED = """ERROR: Missing Signed-off-by: line(s)

total: 1 errors, 0 warnings, 15 lines checked
"""


def test_errors_outside_of_tables_are_reported():
    reported = style_errors(TABLE + CODE + UNSIGNED)
    assert [one.splitlines()[0] for one in reported] == [
        "ERROR: braces {} are necessary for all arms of this statement",
        "ERROR: Missing Signed-off-by: line(s)",
    ]
    assert "hw/intc/apic.c:1150" in reported[0]


def test_warnings_and_tables_alone_are_no_errors():
    assert style_errors(TABLE + "total: 0 errors, 1 warnings, 648 lines checked\n") == []
