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


def test_credentials_are_read_by_one_thread_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    argv = [sys.executable, "-c", READ, str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "read 20\n"), done.stderr
