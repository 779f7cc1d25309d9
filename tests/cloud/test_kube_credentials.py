"""Both watches read their credentials at the same time, when `vmplace kube agent` begins."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud.test_secrets import kubeconfig

# A thread pauses where msgspec reads the hints of a class: the other one then meets the half-known class.
READ = """
import sys, threading, time
from pathlib import Path
import lightkube.config.client_adapter, lightkube.config.kubeconfig
from vmplace.cloud.kubernetes.watch import ApiClient

def pause(frame, event, argument):
    if frame.f_code.co_name == "get_class_annotations":
        time.sleep(0.02)

def read(wait_s):
    sys.settrace(pause)
    time.sleep(wait_s)
    ApiClient(Path(sys.argv[1])).close()

threads = [threading.Thread(target=read, args=(0.01 * number,)) for number in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("read", len(threads))
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (None, "cannot be read: No such file"),
        ("hello\n", "is no kubeconfig"),
        ("a: b: c\n", "is no valid YAML, line 1"),
        ("{}\n", "is no kubeconfig"),
        ("[1, 2]\n", "is no kubeconfig"),
        ("\x00", "is no kubeconfig"),
    ],
)
def test_a_kubeconfig_that_gives_no_way_in_is_wrong_usage_at_once(
    tmp_path: Path, text: str | None, reported: str
) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    config = tmp_path / "kubeconfig"
    if text is not None:
        config.write_text(text)
    words = ["kube", "agent", "--node", "n1", "--kubeconfig", str(config), "--socket", str(tmp_path / "s")]
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and str(config) in done.stderr and reported in done.stderr, done.stderr


def test_a_missing_certificate_is_not_called_a_missing_kubeconfig(tmp_path: Path) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    from vmplace.cloud.kubernetes.watch import ApiClient, CredentialsError

    config = kubeconfig(tmp_path, "https://127.0.0.1:1")
    there = config.read_text()
    assert "{server: " in there
    config.write_text(there.replace("{server: ", "{certificate-authority: /absent/ca.crt, server: "))
    with pytest.raises(CredentialsError) as caught:
        ApiClient(config)
    assert str(caught.value).startswith(f"a certificate or key that {config} names cannot be read: No such")


def test_credentials_are_read_by_one_thread_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    argv = [sys.executable, "-c", READ, str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "read 20\n"), done.stderr
