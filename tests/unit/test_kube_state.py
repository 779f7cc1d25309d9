"""Which pod is whose, and what instances say: by Kubernetes' and KubeVirt's forms, whatever is in them."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vmplace.cloud.kubernetes.node_state import NodeState, StatedFile
from vmplace.cloud.kubernetes.pods import pod_uid, qemu_by_pod
from vmplace.cloud.kubernetes.vmis import Vmi, parse_vmi, stated
from vmplace.cloud.kubernetes.watch import LABELS, Watch
from vmplace.errors import VmplaceError
from vmplace.topology.stated_guests import StatedGuest, StatedGuests, encoded

POD = "0a1b2c3d-1111-2222-3333-444455556666"
SLICE = "kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice"


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-77.scope", POD),
        (f"0::/kubepods/burstable/pod{POD}/abc", POD),
        (f"0::/kubepods.slice/{SLICE.replace('-burstable', '')}/crio-1.scope/container", POD),
        (f"5:pids:/kubepods/pod{POD}/abc\n0::/", POD),
        ("0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator", None),
        (f"0::/pod{POD}0/abc", None),
        # Made by a user, whom systemd lends the group of his session.
        (f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/abc", None),
        # The same, seen from a container.
        (f"0::/../../../../user.slice/user-1000.slice/user@1000.service/pod{POD}/abc", None),
        (f"0::/../pod{POD}/abc", POD),
    ],
)
def test_the_pod_is_read_from_the_cgroup(cgroup: str, uid: str | None):
    assert pod_uid(cgroup) == uid


def test_the_innermost_pod_counts():
    outer = POD.replace("0a1b", "ffff")
    assert pod_uid(f"0::/kubepods/pod{outer}/abc/kubepods/pod{POD}/def") == POD


def process(proc: Path, pid: int, comm: str, cgroup: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{comm}\n")
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "stat").write_text(f"{pid} ({comm}) S {'0 ' * 18}{pid + 1} 0")


def test_only_qemu_in_pods_is_found(tmp_path: Path):
    process(tmp_path, 7, "qemu-kvm", f"0::/kubepods/pod{POD}/abc")
    process(tmp_path, 8, "virtqemud", f"0::/kubepods/pod{POD}/abc")
    process(tmp_path, 9, "qemu-system-x86", "0::/machine.slice")
    (tmp_path / "10").mkdir()
    assert qemu_by_pod(tmp_path) == {POD: (7, 8)}


@pytest.mark.parametrize(
    "raw",
    [{}, {"metadata": None}, {"metadata": {"annotations": []}, "status": 3}, {"status": {"activePods": "x"}}],
)
def test_what_is_not_there_says_nothing(raw: dict[str, object]):
    vmi = parse_vmi(raw, "node1")
    assert (vmi.annotations, vmi.pods, vmi.migrates) == ((), (), False)


@pytest.mark.parametrize(
    ("state", "migrates"),
    [
        ({"startTimestamp": "t"}, True),
        ({"startTimestamp": "t", "completed": True}, False),
        ({"startTimestamp": "t", "failed": True}, False),
        ({"startTimestamp": "t", "endTimestamp": "t"}, False),
        ({"targetNode": "n"}, False),
    ],
)
def test_a_migration_lasts_from_its_start_to_its_end(state: dict[str, object], migrates: bool):
    assert parse_vmi({"status": {"migrationState": state}}, "node1").migrates is migrates


def test_pods_of_other_nodes_are_left_out():
    vmi = parse_vmi({"status": {"activePods": {"a": "node1", "b": "node2"}}}, "node1")
    assert vmi.pods == ("a",)


def test_a_hook_bridges_the_time_until_the_watch_knows():
    vmi = Vmi("default", "vm1", (), (POD,), migrates=False)
    [guest] = stated([vmi], {POD: (7, 8)}, {vmi.key: 120.0}, 100.0)
    assert guest.migrating_until_s == 120 and (guest.namespace, guest.name) == ("default", "vm1")
    [guest] = stated([vmi], {POD: (7, 8)}, {vmi.key: 90.0}, 100.0)
    assert guest.migrating_until_s == 0


def test_a_directory_that_is_missing_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = StatedFile(tmp_path / "none/stated", NodeState(), dict)
    file.write()
    file.write()
    assert len(caplog.records) == 1
    (tmp_path / "none").mkdir()
    file.write()
    assert msgspec.json.decode((tmp_path / "none/stated").read_bytes())["guests"] == []


def test_who_writes_it_is_who_may(tmp_path: Path):
    StatedFile(tmp_path / "stated", NodeState(), dict).write()
    status = (tmp_path / "stated").stat()
    assert status.st_uid == os.getuid() and not status.st_mode & 0o022


def read(path: Path) -> dict[tuple[int, int], dict[str, str]]:
    policies = StatedGuests(path, owner=os.getuid()).policies()
    return {who: {one.key: one.text for one in said.annotations} for who, said in policies.items()}


def test_a_file_that_was_taken_away_is_written_again(tmp_path: Path):
    state = NodeState()
    for label in LABELS:
        state.replace(label, ())
    file = StatedFile(tmp_path / "stated", state, dict)
    file.write()
    (tmp_path / "stated").unlink()
    file.write()
    assert (tmp_path / "stated").exists()


class Ends:
    """An API server whose watches end at once, as some do behind a proxy, or with an error."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self.asked, self._events = 0, events

    def listed(self, selector: str) -> tuple[list[Any], str]:
        self.asked += 1
        return [], "1"

    def iter_events(self, selector: str, version: str) -> Iterator[tuple[str, Any]]:
        yield "BEGUN", {}
        yield from self._events

    def close(self) -> None:
        pass


@pytest.mark.parametrize("events", [(), (("ERROR", {"code": 410}),)])
def test_watches_that_end_at_once_are_no_storm_of_lists(events: Any, caplog: pytest.LogCaptureFixture):
    server = Ends(*events)
    watch = Watch(LABELS[0], "node", NodeState(), lambda: server, threading.Event())  # type: ignore[arg-type,return-value]
    waits = []
    for _ in range(12):
        watch.step()
        waits.append(watch._wait_s)
    assert waits[:3] == [1.0, 2.0, 4.0] and waits[-1] == 30.0
    assert caplog.text.count("ended early") == 1


class Slow(Ends):
    """An API server that answers nothing, and for which each attempt waits as long as a client does."""

    now_s = 0.0

    def listed(self, selector: str) -> tuple[list[Any], str]:
        self.now_s += 60.0
        raise VmplaceError("the API server answers 504")


def test_a_server_that_takes_long_to_fail_is_asked_ever_less():
    server, waits = Slow(), []
    watch = Watch(LABELS[0], "node", NodeState(), lambda: server, threading.Event(), lambda: server.now_s)  # type: ignore[arg-type,return-value]
    for _ in range(12):
        watch.step()
        waits.append(watch._wait_s)
    assert waits[:3] == [1.0, 2.0, 4.0] and waits[-1] == 300.0


def test_a_start_forgets_nothing_before_each_watch_had_its_list(tmp_path: Path):
    """As after a restart of the pod while the API server is away."""
    path, qemu = tmp_path / "stated", {POD: (7, 8), "other": (9, 10), "new": (11, 12)}
    old = (("mode", "manual"),)
    guests = (StatedGuest(7, 8, "a", old), StatedGuest(9, 10, "b", old), StatedGuest(13, 14, "gone", old))
    path.write_bytes(encoded(guests))
    path.chmod(0o600)
    state = NodeState(LABELS)
    file = StatedFile(path, state, lambda: qemu)
    file.write()
    assert read(path).keys() == {(7, 8), (9, 10), (13, 14)}
    # A hook tells of one: the others' words stay, of those that run.
    state.put(LABELS[0], Vmi("default", "vm3", (("mode", "advise"),), ("new",), migrates=False))
    file.write()
    assert read(path) == {(7, 8): dict(old), (9, 10): dict(old), (11, 12): {"mode": "advise"}}
    state.replace(LABELS[0], [Vmi("default", "vm1", (("mode", "auto"),), (POD,), migrates=False)])
    file.write()
    assert read(path) == {(7, 8): {"mode": "auto"}, (9, 10): dict(old)} | {(11, 12): {"mode": "advise"}}
    state.replace(LABELS[1], [])
    file.write()
    assert read(path) == {(7, 8): {"mode": "auto"}}


def test_words_of_tenants_are_for_root_alone(tmp_path: Path):
    StatedFile(tmp_path / "stated", NodeState(), dict).write()
    assert (tmp_path / "stated").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "annotations",
    [
        {"vmplace.io/mode": "x" * 250_000},
        {f"vmplace.io/k{n}": "x" * 100 for n in range(2000)},
        {"vmplace.io/mode": "\x01" * 100_000},
    ],
)
def test_one_tenants_annotations_do_not_silence_the_others(annotations: dict[str, str], tmp_path: Path):
    """Kubernetes takes 256 KiB of annotations of an instance; a node has 110 pods."""
    bad = {"metadata": {"name": "x", "annotations": annotations}}
    vmis, qemu = [Vmi("good", "vm", (("mode", "manual"),), ("good",), migrates=False)], {"good": (1, 1)}
    for n in range(109):
        uid = f"bad{n}"
        raw = bad | {"status": {"activePods": {uid: "node1"}}}
        vmis.append(replace(parse_vmi(raw, "node1"), name=uid))
        qemu[uid] = (2 + n, 1)
    state = NodeState()
    state.replace(LABELS[0], vmis)
    StatedFile(tmp_path / "stated", state, lambda: qemu).write()
    said = StatedGuests(tmp_path / "stated", owner=os.getuid())
    policies = said.policies()
    assert said.notes == () and policies[1, 1].error is None
    assert len(policies) == 110 and all(policies[2 + n, 1].error for n in range(109))


def test_a_few_long_annotations_are_taken_as_they_are():
    raw = {"metadata": {"annotations": {"vmplace.io/schedule": "y" * 4000, "vmplace.io/mode": "auto"}}}
    assert parse_vmi(raw, "node1").annotations == (("mode", "auto"), ("schedule", "y" * 4000))


def test_a_pod_that_two_instances_name_says_nothing():
    one, two = (Vmi(name, "vm", (("mode", "auto"),), (POD,), migrates=False) for name in ("a", "b"))
    qemu = {POD: (7, 8), "other": (9, 10)}
    [guest] = stated([one, two, replace(two, name="other", pods=("other",))], qemu, {}, 0.0)
    assert guest.pid == 9


class Server:
    """An API server that lists one instance, and then tells of events."""

    def __init__(self, listed: dict[str, object], *events: tuple[str, dict[str, object]]) -> None:
        self._listed, self._events = listed, events

    def listed(self, selector: str) -> tuple[list[object], str]:
        assert selector == f"{LABELS[0]}=node1"
        return [self._listed], "1"

    def iter_events(self, selector: str, version: str) -> Iterator[tuple[str, object]]:
        yield from self._events

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("kind", "says"), [("MODIFIED", "auto"), ("DELETED", None), ("BOOKMARK", "manual")])
def test_an_event_changes_or_ends_what_an_instance_says(kind: str, says: str | None):
    def raw(mode: str) -> dict[str, object]:
        meta = {"namespace": "a", "name": "vm", "annotations": {"vmplace.io/mode": mode}}
        return {"metadata": meta, "status": {"activePods": {POD: "node1"}}}

    state, server = NodeState(), Server(raw("manual"), (kind, raw("auto")))
    Watch(LABELS[0], "node1", state, lambda: server, threading.Event()).follow()  # type: ignore[arg-type,return-value]
    assert [dict(one.annotations) for one in state.stated({POD: (7, 8)})] == (
        [{"mode": says}] if says else []
    )
