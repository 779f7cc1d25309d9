"""Write a feature file for Node Feature Discovery, which turns it into labels of the node.

NFD's local source reads files in features.d: a line NAME=VALUE each, those with a prefix as they are.
``# +expiry-time`` makes them void once nobody writes the file any more (NFD 0.17, "Local feature
source").  No client, no credentials, no rights in the cluster.
"""

import time
from collections.abc import Iterable

PREFIX = "vmplace.io"


def feature_file(policy: str, nids: Iterable[int], tight: Iterable[int], expires_unix_s: float) -> str:
    """Return the file; labels hold letters, digits, ``-``, ``_`` and ``.`` only, so nodes come as 0_1."""
    expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_unix_s))
    bad = sorted(tight)
    values = {
        "present": "true",
        "policy": policy,
        "numa-nodes": str(len(set(nids))),
        "numa-tight": "_".join(map(str, bad)) or "none",
        # A host all of whose nodes are tight: nothing more of weight should come here.
        "all-tight": str(bool(bad) and set(bad) == set(nids)).lower(),
    }
    lines = "".join(f"{PREFIX}/{name}={value}\n" for name, value in values.items())
    return f"# Written by vmplace kube features.\n# +expiry-time={expiry}\n{lines}"
