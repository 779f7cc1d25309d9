"""The payload as a plain process: declared touches are made, and a wrong byte is found."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "lab/payload"

ONE_VCPU = ("arena=8", "vcpus=1", "verify=0")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("payload")
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"OUT={out}", "payload-tool"], check=True)
    return out / "payload"


def talk(program: Path, words: tuple[str, ...], commands: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [program, *words], input=commands, capture_output=True, text=True, timeout=60, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def after_ticks(program: Path, words: tuple[str, ...], seconds: float) -> dict[str, Any]:
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        answers: Iterator[dict[str, Any]] = map(json.loads, run.stdout)
        last = next(answers)
        while last["t"] < seconds:
            last = next(answers)
        run.stdin.write("quit\n")
        run.stdin.flush()
    return last


def answer(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_an_answer_has_the_number_of_its_question_and_nothing_else_has(program: Path) -> None:
    lines = talk(program, ONE_VCPU, "@7 verify\n@8 status\nverify\nquit\n")
    numbers = [(line["event"], line["answers"]) for line in lines if line["event"] != "status"]
    assert numbers == [("verified", 7), ("verified", 0), ("quit", 0)]
    assert 8 in {line["answers"] for line in lines if line["event"] == "status"}


SAID = (
    b'{"event":"speed","bad_pages":0,"answers":6}\n{"event":"phase","bad_pages":0,"answers":0}\n',
    b'{"event":"verified","bad_pages":0,"answers":77}\n{"event":"verified","bad_pages":3,"answers":7}\n',
)


def test_only_the_line_with_its_number_is_an_answer(tmp_path: Path) -> None:
    """Neither what a guest says as its phase ends, nor what it says late."""
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"OUT={tmp_path}", f"{tmp_path}/vmp-talk"], check=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        asking = [str(tmp_path / "vmp-talk"), "20", "@7 verify", str(tmp_path / "s")]
        with subprocess.Popen(asking, stdout=subprocess.PIPE, text=True) as run:
            peer, _ = listening.accept()
            with peer:
                assert peer.recv(100) == b"@7 verify\n"
                peer.sendall(b"".join(SAID))
                assert run.stdout and json.loads(run.stdout.read().partition("\t")[2])["bad_pages"] == 3
    assert run.returncode == 0


def test_untouched_memory_is_intact(program: Path) -> None:
    (verified,) = answer(talk(program, ONE_VCPU, "verify\nquit\n"), "verified")
    assert (verified["verified_pages"], verified["bad_pages"]) == (2048, 0)


def test_each_vcpu_verifies_all_of_it(program: Path) -> None:
    """Nodes may have copies of their own."""
    (verified,) = answer(talk(program, ("arena=8", "vcpus=2"), "verify\nquit\n"), "verified")
    assert (verified["verified_pages"], verified["bad_pages"]) == (2 * 2048, 0)


@pytest.mark.parametrize("byte", [0, 3, 4, 63, 4096 * 100 + 77, (8 << 20) - 1])
def test_one_flipped_bit_anywhere_is_found(program: Path, byte: int) -> None:
    (verified,) = answer(talk(program, ONE_VCPU, f"corrupt {byte}\nverify\nquit\n"), "verified")
    assert (verified["bad_pages"], verified["first_bad"]) == (1, byte // 4096)


def test_a_flipped_bit_is_found_without_being_asked(program: Path) -> None:
    words = ("arena=8", "vcpus=2", "verify=65536")
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        run.stdin.write("corrupt 123460\n")
        run.stdin.flush()
        bad = next(line for line in map(json.loads, run.stdout) if line["bad_pages"])
        run.stdin.close()
    assert bad["first_bad"] == 123460 // 4096


def test_writes_of_all_threads_are_accounted_for(program: Path) -> None:
    words = ("arena=4", "vcpus=2", "verify=4096", "touch=vcpu:0-1,range:0+4,rate:200,write:100")
    last = after_ticks(program, words, 1.0)
    assert last["writes"] > 10_000
    assert last["bad_pages"] == 0


def test_touches_come_at_the_declared_rate(program: Path) -> None:
    words = ("arena=8", "vcpus=2", "tick=10", "touch=vcpu:1,range:2+4,order:sequential,rate:50,write:25")
    last = after_ticks(program, words, 2.0)
    # The first tick begins at 0, so one more has begun than has passed.
    ticks = last["t"] // 0.010 + 1
    # A late tick is dropped, never made up for: the rate is a ceiling, whatever else the machine does.
    assert 500 <= last["touches"] <= ticks * 500
    assert last["touches"] % 500 == 0
    assert last["writes"] / last["touches"] == pytest.approx(0.25, abs=0.03)


def test_a_phase_touches_only_while_it_lasts(program: Path) -> None:
    words = (*ONE_VCPU, "phases=1500,60000", "touch=vcpu:0,range:0+8,rate:10,phase:0")
    later = after_ticks(program, words, 3.0)
    assert later["phase"] == 1
    assert 0 < later["touches"] <= 1500 * 10 + 500


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("colour=red", "unknown key 'colour'"),
        ("touch=vcpu:0,range:0+9", "ends beyond the arena of 8 MiB"),
        ("touch=vcpu:0,range:0", "'0' is not OFFSET+LENGTH in MiB"),
        ("touch=vcpu:1,range:0+1", "a vcpu is not within 0-0"),
        ("touch=vcpu:0,range:0+1,order:sorted", "not sequential, random or zipf"),
        ("touch=vcpu:0,range:0+1,stride:100", "not a multiple of 64"),
        ("seed=-1", "'-1' is not a number"),
        ("tick=0", "at least 1 ms"),
    ],
)
def test_a_wrong_word_is_reported(program: Path, word: str, said: str) -> None:
    (error,) = talk(program, (*ONE_VCPU, word), "")
    assert error["event"] == "error"
    assert said in error["message"]


def test_on_a_kernel_command_line_only_prefixed_words_count(tmp_path: Path, program: Path) -> None:
    lines = talk(program, ("vmp.arena=4", "vcpus=1"), "quit\n")
    assert lines[-1]["arena_pages"] == 1024


def test_a_waiting_payload_touches_nothing_until_asked_to_go(program: Path) -> None:
    words = (*ONE_VCPU, "wait=1", "touch=vcpu:0,range:0+8,rate:10")
    assert after_ticks(program, words, 1.0)["touches"] == 0
    assert answer(talk(program, words, "go\nquit\n"), "going")


def test_speed_multiplies_the_declared_rates(program: Path) -> None:
    words = (*ONE_VCPU, "tick=10", "touch=vcpu:0,range:0+8,order:sequential,rate:10")
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        run.stdin.write("speed 50\n")
        run.stdin.flush()
        lines = map(json.loads, run.stdout)
        statuses = (line for line in lines if line["event"] == "status")
        # However few ticks a slow machine makes: the declared rate allows less, even in a second more.
        fast = next((one for one in statuses if one["touches"] > 10 * 1000 * (one["t"] + 1)), None)
        run.stdin.close()
    assert fast is not None


def test_calls_come_at_the_declared_rate_and_return_what_they_ought_to(program: Path) -> None:
    last = after_ticks(program, (*ONE_VCPU, "tick=10", "library=2", "calls=50"), 2.0)
    assert 500 <= last["calls"] <= (last["t"] // 0.010 + 1) * 500
    assert last["calls"] % 500 == last["wrong_calls"] == 0


def test_a_changed_function_is_found(program: Path) -> None:
    """A debugger changes one function of the library."""
    words = (*ONE_VCPU, "library=1")
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        next(map(json.loads, run.stdout))
        start = code_of(run.pid)
        with Path(f"/proc/{run.pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start + 4711 * 64 + 1)
            assert int.from_bytes(memory.read(4), "little") == 4711
            memory.seek(start + 4711 * 64 + 1)
            memory.write((1).to_bytes(4, "little"))
        run.stdin.write("verify\nquit\n")
        run.stdin.flush()
        (verified,) = answer([*map(json.loads, run.stdout)], "verified")
    assert (verified["bad_pages"], verified["wrong_calls"]) == (0, 1)


def code_of(pid: int) -> int:
    """Return where the process has code that no file holds."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    (area,) = (line[0] for line in maps if line[1].startswith("r-x") and len(line) == 5)
    return int(area.partition("-")[0], 16)
