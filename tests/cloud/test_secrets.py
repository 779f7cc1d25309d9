"""No password or token is printed, logged or left in a file, whatever the cloud's services answer.

The commands run as they ship, but log more: all that the libraries below them have to say.
"""

import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from tests.cloud.secret_eater import Answer, SecretEater, secret_eater
from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import running
from vmplace.errors import VmplaceError

REPOSITORY = Path(__file__).parents[2]
PASSWORD, TOKEN = "pw-6kQd0vTz", "tok-Zr41uWmB"
VERBOSE = "import logging; logging.basicConfig(level=1); from vmplace.interfaces.cli import main; main()"
"""Who sets up logging first decides its level: the command asks for less, which has no effect here."""
ANSWERS: list[tuple[Answer, Answer, str]] = [
    (200, 200, ""),
    (401, 200, "does not let this user in"),
    (403, 200, "cannot connect to OpenStack"),
    ("garbage", 200, "cannot connect to OpenStack"),
    ("echo", 200, "cannot connect to OpenStack"),
    (200, 401, "does not"),
    (200, 403, "may not (403)"),
    (200, "garbage", ""),
    (200, "echo", "500"),
]
"""What Keystone and Placement answer, and words that are then on stderr."""


def assert_keeps_to_itself(server: SecretEater, folder: Path, printed: str, sent: tuple[str, ...]) -> None:
    """Fail if a secret that reached the server is in what was printed, or in a file in ``folder``."""
    assert [secret for secret in sent if secret not in server.received] == []
    left = "".join(path.read_text(errors="replace") for path in folder.iterdir() if path.is_file())
    assert [secret for secret in (PASSWORD, TOKEN) if secret in printed + left] == []


def clouds(folder: Path, url: str) -> Path:
    path = folder / "clouds.yaml"
    path.write_text(
        f"clouds: {{vmplace: {{auth: {{auth_url: '{url}/v3', username: admin, password: {PASSWORD}, "
        "project_name: admin, user_domain_id: default, project_domain_id: default}}}\n"
    )
    return path


def run(words: list[str], config: Path) -> "subprocess.CompletedProcess[str]":
    env = dict(os.environ, OS_CLIENT_CONFIG_FILE=str(config))
    argv = [sys.executable, "-c", VERBOSE, *words]
    return subprocess.run(
        argv, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(("keystone", "placement", "reported"), ANSWERS)
@pytest.mark.parametrize("command", ["publish", "withdraw"])
def test_openstack_commands_keep_secrets(
    command: str, keystone: Answer, placement: Answer, reported: str, tmp_path: Path
) -> None:
    pytest.importorskip("openstack", reason="make test-cloud sets up what is needed")
    (tmp_path / "run").mkdir()
    world = World([guest("db1")])
    agent = world.agent(window_ms=20)
    words = ["openstack", command, "--cloud", "vmplace", "--host", "host"]
    with (
        secret_eater(TOKEN, keystone, placement) as server,
        running(world, agent, tmp_path / "run/s") as path,
    ):
        config = clouds(tmp_path, server.url)
        done = run(words + (["--once", "--socket", str(path)] if command == "publish" else []), config)
        state = run(["status", "--json", "--socket", str(path)], config).stdout
    assert '"db1"' in state and reported in done.stderr
    assert done.returncode == (0 if keystone == placement == 200 else 1), done.stderr
    sent = (PASSWORD, TOKEN) if keystone == 200 else (PASSWORD,)
    assert_keeps_to_itself(server, tmp_path / "run", done.stdout + done.stderr + state, sent)


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, "
        f"user: u}}}}], clusters: [{{name: c, cluster: {{server: '{url}'}}}}], "
        f"users: [{{name: u, user: {{token: {TOKEN}}}}}]}}\n"
    )
    return path


@pytest.mark.parametrize(
    ("spoilt", "reported"),
    [
        (f'"{TOKEN}\\n"', "a character that no header may"),
        (f"{TOKEN}: a: b\n", "is no valid YAML, line"),
    ],
)
def test_a_kubeconfig_that_is_wrong_keeps_its_token(spoilt: str, reported: str, tmp_path: Path) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    from vmplace.cloud.kubernetes.watch import ApiClient

    with secret_eater(TOKEN, service=200) as server:
        config = kubeconfig(tmp_path, server.url)
        config.write_text(config.read_text().replace(f"token: {TOKEN}", f"token: {spoilt}"))
        with pytest.raises(VmplaceError, match=reported) as caught:
            ApiClient(config).listed("a=b")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        # The list is no watch.
        (200, "the watch broke"),
        (401, "does not know who asks"),
        (403, "a right is missing"),
        ("garbage", "malformed"),
        ("echo", "answers 500"),
    ],
)
def test_the_kubernetes_side_keeps_its_token(answer: Answer, reported: str, tmp_path: Path) -> None:
    pytest.importorskip("lightkube", reason="make test-cloud sets up what is needed")
    folder = tmp_path / "run"
    folder.mkdir()
    log = folder / "log"
    with secret_eater(TOKEN, service=answer) as server, log.open("w") as out:
        words = ["kube", "agent", "--node", "n1", "--kubeconfig", str(kubeconfig(tmp_path, server.url))]
        argv = [sys.executable, "-c", VERBOSE, *words, "--socket", str(folder / "s")]
        process = subprocess.Popen([*argv, "--interval", "0.2"], stdout=out, stderr=out, cwd=REPOSITORY)
        try:
            end_s = time.monotonic() + 60
            while reported not in log.read_text() and process.poll() is None and time.monotonic() < end_s:
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(30)
    assert reported in log.read_text() and process.returncode == 0, log.read_text()
    # Their lines have addresses and headers in them.
    assert not re.search(r"^\w+:http(x|core)", log.read_text(), re.MULTILINE)
    assert_keeps_to_itself(server, folder, "", (TOKEN,))
