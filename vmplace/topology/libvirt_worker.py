"""What does libvirt say?  Asked in a process of its own, which ends with the answer.

libvirt's libraries would be a quarter of the agent's memory, and a call to a libvirtd that hangs cannot be
taken back; a process can be killed.  Run as a file, for it needs nothing of the package:

    python3 -P libvirt_worker.py URI domains
    python3 -P libvirt_worker.py URI monitor UUID COMMAND

Prints one JSON object: {"domains": [[UUID, NAME, XML], …]}, or {"text": …} of the monitor, or
{"error": …, "gone": whether the domain ended}.
"""

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

LIFE_S = 30
"""Nobody waits longer for libvirt; a worker whose agent was killed ends then, too."""


def main(uri: str, question: str, *words: str) -> dict[str, Any]:
    """Return the answer to one question."""
    signal.alarm(LIFE_S)
    import libvirt

    # The default handler prints each error to stderr.
    libvirt.registerErrorHandler(lambda *_: None, None)
    try:
        # Only QEMU's monitor is asked by a connection that could also change something.
        opened = libvirt.open if question == "monitor" else libvirt.openReadOnly
        connection = opened(uri)
        return QUESTIONS[question](connection, *words)
    except libvirt.libvirtError as err:
        return {"error": f"libvirt: {err}", "gone": err.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN}


def read_domains(connection: Any) -> dict[str, Any]:
    """Return the running domains; one that ended since the list was made is left out."""
    import libvirt

    domains = []
    for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
        try:
            domains.append((domain.UUIDString(), domain.name(), domain.XMLDesc(0)))
        except libvirt.libvirtError as err:
            if err.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
    return {"domains": domains}


def ask_monitor(connection: Any, uuid: str, command: str) -> dict[str, Any]:
    """Return the answer of QEMU's human monitor; taints the domain."""
    import libvirt_qemu

    hmp = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
    return {"text": libvirt_qemu.qemuMonitorCommand(connection.lookupByUUIDString(uuid), command, hmp)}


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {"domains": read_domains, "monitor": ask_monitor}

if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
