"""``vmplace metrics``: what Prometheus scrapes, served, printed or written to a file.

The exporter is a process of its own.  The agent runs as root without a network; the exporter needs no
right but the group vmplace, and asks the agent as ``vmplace status`` does.
"""

import signal
import threading
from pathlib import Path
from types import FrameType, ModuleType

import click

from vmplace.errors import VmplaceError, WrongUsageError
from vmplace.extras import extra_cure
from vmplace.interfaces.options import WholeSentences, examples, socket_option
from vmplace.interfaces.output_file import opened_output
from vmplace.outside import read_text

DEFAULT_LISTEN = "127.0.0.1:9755"
SHIPPED = Path(__file__).with_name("prometheus")


@click.group(
    cls=WholeSentences,
    epilog=examples(
        "vmplace metrics serve\n"
        "vmplace metrics print | promtool check metrics\n"
        "vmplace metrics write /var/lib/prometheus/node-exporter/vmplace.prom\n"
        "vmplace metrics rules > /etc/prometheus/rules/vmplace.yml"
    ),
)
def metrics() -> None:
    """Export metrics of the agent, its guests and the NUMA nodes to Prometheus."""


@metrics.command("print")
@socket_option
def print_metrics(socket: Path | None) -> None:
    """Print the metrics once, in Prometheus' text format."""
    click.echo(_exporter().exposed(socket).decode(), nl=False)


@metrics.command("write")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@socket_option
def write_metrics(file: Path, socket: Path | None) -> None:
    """Write the metrics to FILE, atomically: for node_exporter's textfile collector."""
    # node_exporter is another user.
    with opened_output(file, mode=0o644) as out:
        out.write(_exporter().exposed(socket))


@metrics.command("rules")
def print_rules() -> None:
    """Print recording and alert rules for Prometheus."""
    click.echo(read_text(SHIPPED / "vmplace.rules.yml"), nl=False)


@metrics.command("dashboard")
@click.option("--fleet", is_flag=True, help="The dashboard of all hosts together, not of one.")
def print_dashboard(fleet: bool) -> None:
    """Print a dashboard to import into Grafana."""
    name = "vmplace-fleet.dashboard.json" if fleet else "vmplace.dashboard.json"
    click.echo(read_text(SHIPPED / name), nl=False)


@metrics.command("serve", epilog=examples("vmplace metrics serve --listen 127.0.0.1:9755"))
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, help="ADDRESS:PORT to listen on.")
@socket_option
def serve_metrics(listen: str, socket: Path | None) -> None:
    """Serve /metrics until stopped.  Whoever reaches the port can read them: the default is loopback."""
    address, port = parse_listen(listen)
    try:
        server = _exporter().server(address, port, socket)
    except OSError as err:
        hint = "another exporter may be there: choose one with --listen ADDRESS:PORT"
        raise VmplaceError(f"cannot listen on {listen}: {err}", hint=hint) from err

    def stop(_number: int, _frame: FrameType | None) -> None:
        # shutdown() waits for serve_forever(), which this thread runs.
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    host = listen.rpartition(":")[0]
    click.echo(f"serving http://{host}:{server.server_port}/metrics", err=True)
    with server:
        server.serve_forever()


def _exporter() -> ModuleType:
    """Return what needs prometheus-client, which a host without Prometheus lacks; raises VmplaceError."""
    try:
        from vmplace.interfaces import metrics_exporter
    except ImportError as err:
        hint = f"apt install python3-prometheus-client, or {extra_cure('metrics')}"
        raise VmplaceError(f"metrics cannot be made: {err}", hint=hint) from err
    return metrics_exporter


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``, the address of IPv6 in brackets; raises WrongUsageError."""
    address, _, port = text.rpartition(":")
    if not address or not port.isdecimal() or int(port) > 65535:
        why = "not ADDRESS:PORT, with a port of at most 65535"
        raise WrongUsageError(f"--listen {text}: {why}", hint=f"for example {DEFAULT_LISTEN}")
    return address.strip("[]"), int(port)
