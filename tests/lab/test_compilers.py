"""What kernel and QEMU are compiled by: a compiler of the usual name that compiles the same text once."""

from pathlib import Path

import pytest

from lab import trees
from lab.progress import Progress
from lab.toolbox import compile_in_tree

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_what_was_compiled_in_one_folder_is_not_compiled_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.compilers(Progress())
    monkeypatch.setenv("VMPLACE_CACHE", str(tmp_path / "cache"))
    said = []
    for name in ("first", "second"):
        work, log = tmp_path / name, tmp_path / f"{name}.log"
        work.mkdir()
        (work / "one.c").write_text("int one(void) { return 1; }\n")
        script = "gcc -O2 -c one.c -o one.o && command -v gcc && ccache --print-stats | grep cache_hit"
        compile_in_tree(tree, ["sh", "-ec", script], binds={work: Path("/build")}, cwd="/build", log=log)
        said.append(log.read_text().split())
    assert [words[0] for words in said] == ["/usr/lib/ccache/gcc"] * 2
    hits = [dict(zip(words[1::2], map(int, words[2::2]), strict=True)) for words in said]
    assert sum(hits[0].values()) == 0 and sum(hits[1].values()) == 1
    assert (tmp_path / "first/one.o").read_bytes() == (tmp_path / "second/one.o").read_bytes()
