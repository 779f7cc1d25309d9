"""Write a man page for vmplace and each of its commands: man_pages.py FOLDER."""

import sys

from click_man.core import write_man_pages

from vmplace import __version__
from vmplace.interfaces.cli import cli


def main() -> None:
    """Commands are imported one by one when they run; the manual needs all."""
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        if command is not None:
            cli.add_command(command, name)
    write_man_pages("vmplace", cli, version=__version__, target_dir=sys.argv[1])


if __name__ == "__main__":
    main()
