"""What do the exit codes of the commands mean?"""

EXIT_FAILED = 1
EXIT_NOTHING = 3
EXIT_NO_AGENT = 4
EXIT_CODES = """\b
Exit codes:
  0  done
  1  failed, or refused
  2  wrong usage
  3  nothing there: no such guest, no guests, nothing to move, no room"""
WITHOUT_AGENT = "  4  no agent answers"
"""Of the commands that can do nothing without one."""
