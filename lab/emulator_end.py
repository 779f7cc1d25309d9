"""Did a signal end the emulator?  By the code of unshare(1) around it, and by its last words."""

import re
import signal


def ending_signal(code: int, said: str) -> str | None:
    """Return the signal that an emulator ended by, from the code of unshare(1) around it, and its last words.

    unshare ends as its child did, but cannot do so by SIGKILL.  QEMU takes SIGTERM and the like for a wish to
    end, and says who sent it.
    """
    if wish := re.search(r"terminating on signal (\d+)", said):
        number = int(wish[1])
    elif code == 1 and "sigprocmask unblock failed" in said:
        number = signal.SIGKILL
    else:
        number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else None
