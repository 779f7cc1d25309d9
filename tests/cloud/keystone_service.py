"""The real Keystone on a database in a folder, and a Placement that trusts it, for tests."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.fernet import Fernet

from tests.cloud.placement_service import PlacementService, free_port

PASSWORD = "password-of-the-tests"  # noqa: S105
KEYSTONE = """\
[database]
connection = sqlite:///{folder}/keystone.db
[token]
provider = fernet
expiration = {expiration_s}
allow_expired_window = 0
[identity]
# As few as there may be: hashing is to cost, and here only costs.
password_hash_rounds = 4
[fernet_tokens]
key_repository = {folder}/fernet-keys
[fernet_receipts]
key_repository = {folder}/fernet-keys
[credential]
key_repository = {folder}/credential-keys
[oslo_policy]
enforce_scope = False
"""
PLACEMENT = """\
[api]
auth_strategy = keystone
[placement_database]
connection = sqlite:///{folder}/placement.db
sync_on_startup = True
[keystone_authtoken]
www_authenticate_uri = {keystone}
auth_url = {keystone}
auth_type = password
username = admin
password = {password}
project_name = admin
user_domain_id = default
project_domain_id = default
# None is kept: a token that is revoked or expired is so at once.
token_cache_time = -1
"""


@dataclass
class KeystoneService(PlacementService):
    """Keystone, by the way in which Placement is run; tokens last ``expiration_s``."""

    expiration_s: int = 3600
    application: str = "keystone.wsgi.api:application"
    settings: str = "OS_KEYSTONE_CONFIG_DIR"

    def prepare(self) -> None:
        """Make database, keys, and the user admin with the password."""
        self.write_config()
        for name in ("fernet-keys", "credential-keys"):
            (self.folder / name).mkdir(mode=0o700)
            # 0 is the key to come, the highest number the one in use.
            for number in ("0", "1"):
                (self.folder / name / number).write_bytes(Fernet.generate_key())
        self._manage("db_sync")
        ends = [f"--bootstrap-{kind}-url={self.url}/v3" for kind in ("admin", "internal", "public")]
        self._manage(
            "bootstrap", f"--bootstrap-password={PASSWORD}", "--bootstrap-region-id=RegionOne", *ends
        )

    def write_config(self) -> None:
        """Write keystone.conf as it is to be from the next start on."""
        text = KEYSTONE.format(folder=self.folder, expiration_s=self.expiration_s)
        (self.folder / "keystone.conf").write_text(text)

    def clouds_of(self, auth: dict[str, str], auth_type: str, placement: PlacementService) -> Path:
        """Return a clouds.yaml with one cloud, vmplace, of which Keystone vouches for the user."""
        cloud = {
            "auth_type": auth_type,
            "auth": {"auth_url": f"{self.url}/v3"} | auth,
            "placement_endpoint_override": placement.url,
        }
        path = self.folder / "clouds.yaml"
        path.write_text(json.dumps({"clouds": {"vmplace": cloud}}))
        return path

    def _manage(self, *words: str) -> None:
        tool = Path(sys.executable).with_name("keystone-manage")
        env = dict(os.environ, OS_KEYSTONE_CONFIG_DIR=str(self.folder))
        argv = [str(tool), f"--config-file={self.folder}/keystone.conf", *words]
        ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]


@contextlib.contextmanager
def keystone_and_placement(
    folder: Path, expiration_s: int
) -> Iterator[tuple[KeystoneService, PlacementService]]:
    """Run both for a while."""
    (folder / "keystone").mkdir()
    (folder / "placement").mkdir()
    keystone = KeystoneService(folder / "keystone", free_port(), expiration_s=expiration_s)
    config = PLACEMENT.format(folder="{folder}", keystone=f"{keystone.url}/v3", password=PASSWORD)
    placement = PlacementService(folder / "placement", free_port(), config=config)
    try:
        keystone.prepare()
        keystone.start()
        placement.start()
        yield keystone, placement
    finally:
        placement.kill()
        keystone.kill()
