"""What does a fuzzer's log say?  One row of the table that `make fuzz` prints."""

import re

MARK = "== round of "
"""Before each process that feeds a target; counting begins anew with it."""
HEADING = f"{'target':18} {'inputs':>9} {'time':>8}  bad"


def row(name: str, log: str, seconds: float, status: int) -> str:
    """Return a target's row: inputs that were fed, and 0, or 1 and what came out of the bad one."""
    count = 0
    for part in log.split(MARK):
        count += max((int(number) for number in re.findall(r"^#([0-9]+)", part, re.M)), default=0)
    said = re.findall(r"^(?:[A-Za-z.]+(?:Error|Exception)\b.*|==[0-9]+== ?ERROR: .*)$", log, re.M)
    bad = f"1: {' '.join(said)[:150] or 'see its log'}" if status else "0"
    return f"{name:18} {count:>9} {seconds:6.1f} s  {bad}"
