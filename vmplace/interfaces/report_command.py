"""``vmplace report``: what happened, as one HTML file that can be sent to somebody."""

import time
from pathlib import Path

import click
import msgspec

from vmplace.errors import OutsideError, VmplaceError, cure_of_reading
from vmplace.extensions import extension, extension_names
from vmplace.interfaces.options import examples, socket_option
from vmplace.interfaces.output_file import opened_output
from vmplace.interfaces.report_page import Section, html_page
from vmplace.outside import parse_json

GROUP = "vmplace.reports"
FILE = click.Path(path_type=Path, dir_okay=False, readable=False)
EXAMPLES = """\
vmplace report build/demo/result.json --policy build/bench/policy.json
vmplace report /tmp/host.vmptrace --out host.html
vmplace report --status"""


@click.command(epilog=examples(EXAMPLES, needs_agent=True))
@click.argument("files", nargs=-1, type=FILE)
@click.option("--status", "with_status", is_flag=True, help="Add the state of the running agent.")
@click.option("--policy", type=FILE, help="Table of the policy bench.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@socket_option
def report(
    files: tuple[Path, ...], with_status: bool, policy: Path | None, out: Path, socket: Path | None
) -> None:
    """Write one HTML file about FILES: results of the lab (JSON), recordings, tables of the policy bench.

    The file holds its pictures, and needs no other file, script or network.
    """
    sections: list[Section] = []
    titles = [_add(path, sections) for path in files]
    if with_status:
        from vmplace.interfaces.client import ask
        from vmplace.interfaces.report_status import status_sections

        sections += status_sections(ask("status", path=socket))
        titles.append("this host")
    if policy:
        titles.append(_add(policy, sections))
    if not sections:
        raise click.UsageError("nothing to report: name a file, or --status")
    made = time.strftime("made %Y-%m-%d %H:%M by vmplace report")
    write_page(out, f"vmplace: {', '.join(titles)}", made, sections)
    click.echo(f"written: {out} ({out.stat().st_size >> 10} KiB)")


def _add(path: Path, sections: list[Section]) -> str:
    """Add what a file tells; return what it is about."""
    from vmplace.sampling.recording import FILE_MAGIC

    try:
        content = path.read_bytes()
    except OSError as err:
        raise VmplaceError(f"{path} cannot be read: {err.strerror}", hint=cure_of_reading(err)) from err
    if content.startswith(FILE_MAGIC):
        return _add_recording(path, sections)
    return _add_json(path, content, sections)


def _add_recording(path: Path, sections: list[Section]) -> str:
    from vmplace.interfaces.report_recording import recording_sections
    from vmplace.sampling.recording import iter_recording

    sections += recording_sections(iter_recording(path))
    return path.name


def _add_json(path: Path, content: bytes, sections: list[Section]) -> str:
    from vmplace.interfaces.report_policy import parse_policy_table, policy_sections

    try:
        keys = parse_json(content, dict[str, msgspec.Raw])
    except OutsideError as err:
        raise VmplaceError(
            f"{path} is neither JSON nor a recording: {err}", hint="see vmplace report --help"
        ) from err
    if "rows" in keys:
        sections += policy_sections(parse_policy_table(content, path))
        return "policies"
    for key in extension_names(GROUP):
        if key in keys and (section_maker := extension(GROUP, key)):
            title, parts = section_maker(content, path)
            sections += parts
            return str(title)
    raise VmplaceError(
        f"{path} is JSON of another kind",
        hint="a result of `make bench-policy`, or of `vmplace lab demo` where the lab is installed",
    )


def write_page(out: Path, title: str, subtitle: str, sections: list[Section]) -> None:
    """Write the page; raises VmplaceError where that is impossible."""
    with opened_output(out) as file:
        # Its <meta> names UTF-8, whatever the locale; a file's name may be no text.
        file.write(html_page(title, subtitle, sections).encode(errors="replace"))
