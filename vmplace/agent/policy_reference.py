"""Generate the policy reference for people (docs/policy-reference.md) and for XML editors (policy.rng).

Both follow from the model: ``python -m vmplace.agent.policy_reference`` writes them.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from vmplace.agent.guest_policy import DEFAULTS, KEYS, GuestPolicy
from vmplace.agent.key_text import description
from vmplace.agent.policy_text import shown, text_of
from vmplace.policy.schedule import DAYS
from vmplace.topology.domain_policy import MAX_BYTES, MAX_DEPTH, NAMESPACE

PAGE = Path(__file__).parents[2] / "docs/policy-reference.md"
SCHEMA = Path(__file__).with_name("policy.rng")

_NIDS = r"\^?[0-9]{1,4}( ?- ?[0-9]{1,4})?"
_WORD = "(move|interleave|replicate|gather|vcpus)"
_DAY, _HOURS = f"({'|'.join(DAYS)})", "[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]"
_STRETCH = f"({_DAY}([,-]{_DAY})* )?{_HOURS}"
PATTERNS = {
    "allowed_nids": f"{_NIDS}( ?, ?{_NIDS})*",
    "preferred_nids": f"{_NIDS}( ?, ?{_NIDS})*",
    "techniques": f"{_WORD}([ ,]+{_WORD})*",
    "schedule": f"({_STRETCH} ?)( ?; ?{_STRETCH})*( ?;)?",
}
CHOICES = {
    "mode": ("manual", "advise", "auto"),
    "priority": ("normal", "protected"),
    "huge_pages": ("move", "leave"),
}
RANGES = {"replica_mb": (0, 1 << 30), "move_mb_per_s": (1, 100_000)}

EXAMPLES: Mapping[str, tuple[object, str]] = {
    "mode": (
        "advise",
        "manual: neither sampled nor planned. advise: `vmplace plan` and `why` show what would be done, "
        "and `vmplace apply GUEST` does it once.",
    ),
    "priority": (
        "protected",
        "Where guests compete for a node, the others make way for it.",
    ),
    "allowed_nids": (
        (0, 1),
        "No page is moved or copied to another node, and vCPUs are tied to no other node. "
        "A node that the host does not have is a mistake.",
    ),
    "preferred_nids": (
        (0,),
        "While these nodes have room for all of the guest's memory, beside a reserve of 3 %, only they are "
        "allowed. Otherwise `allowed_nids` applies, and `why` says so.",
    ),
    "techniques": (
        ("move", "replicate"),
        "Without interleave, memory that several nodes share stays where it is, and none leaves the nodes of "
        "the guest's vCPUs for others. interleave and gather need move. replicate needs a KVM with "
        "kvm-patches/. gather: vCPUs that may run on several nodes are tied to one where that saves time "
        "with the memory that follows. They get their CPUs back if an instruction then takes longer. That "
        "needs mode auto. vcpus: they are tied to the node with most of their memory, if it has cores and "
        "memory for them.",
    ),
    "replica_mb": (
        512,
        "`replica_ratio` in [budget] limits copies, too, for the whole host. In mode auto existing "
        "copies go with 0, and where techniques lack replicate, once the guest may be changed. Else, and "
        "with a lower limit, they stay until they are written to, or until `vmplace undo`.",
    ),
    "move_mb_per_s": (
        64,
        "Up to 2 s of unused rate is saved up. The rest of a plan waits, and `why` says so. "
        "`vmplace apply` keeps to this limit, `vmplace undo` does not.",
    ),
    "huge_pages": (
        "leave",
        "A huge page moves as a whole: 512 times as much memory for which the guest may wait.",
    ),
    "schedule": (
        ("Mon-Fri 22:00-06:00", "Sat,Sun 00:00-24:00"),
        "At other times the guest is sampled and planned for, but not changed. "
        "A time that goes past midnight belongs to the day on which it begins.",
    ),
}


def page() -> str:
    """Return the reference page."""
    parts = [_HEAD, *(_section(key) for key in KEYS), _tail()]
    return "\n".join(parts)


def _section(key: str) -> str:
    value, effect = EXAMPLES[key]
    wanted = (description(GuestPolicy, key) or "").replace(f"{key} is ", "", 1)
    lines = [
        f"## {key}\n",
        *_filled(f"{wanted[0].upper()}{wanted[1:]}. Default: {shown(key, getattr(DEFAULTS, key))}."),
        "",
        *_filled(effect),
        "",
        f"    <vmplace:{key}>{text_of(value)}</vmplace:{key}>",
        f"    {key} = {_toml(value)}",
        f"    openstack flavor set --property vmplace:{key}='{text_of(value)}' FLAVOUR",
        "",
    ]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _filled(text: str, width: int = 100) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


_HEAD = f"""# Policy reference

The policy of a guest says what vmplace may do with it. This page and the schema for XML editors,
`vmplace/agent/policy.rng`, are generated (`python -m vmplace.agent.policy_reference`). The Debian
package has the schema in `/usr/share/vmplace/schemas`.

The same keys can stand in the domain's XML, in `/etc/vmplace/vmplace.toml` and in extra specs of an
OpenStack flavour, which Nova writes into the domain's XML:

    <metadata>
      <vmplace:policy xmlns:vmplace="{NAMESPACE}">
        <vmplace:mode>auto</vmplace:mode>
        <vmplace:allowed_nids>0-1</vmplace:allowed_nids>
      </vmplace:policy>
    </metadata>

    [guests."db*"]
    mode = "auto"
    allowed_nids = [0, 1]

Every key is optional. Each key has the value of the first of these places that states it:

1. `<vmplace:policy>` in the domain's XML;
2. extra specs `vmplace:KEY` of the flavour, in the domain's XML;
3. annotations `vmplace.io/KEY` of a VirtualMachineInstance ([KubeVirt](clouds/kubevirt.md)), which
   only narrow what vmplace.toml says;
4. the first section `[guests."PATTERN"]` of vmplace.toml whose pattern matches the guest's name;
5. the first section `[flavours."PATTERN"]` of vmplace.toml whose pattern matches the name of the
   guest's OpenStack flavour, which Nova writes into the domain's XML;
6. `[defaults]` of vmplace.toml;
7. the defaults below.

`vmplace policy explain GUEST` shows each key's value, and which place states it. In any case,
memory that `<numatune>` binds to nodes (strict or restrictive) stays on them, cell by cell. So does
memory that a QEMU without libvirt was asked to bind (`policy=bind`).

`vmplace policy set GUEST KEY=VALUE` and `virsh metadata` change the XML of a running guest. The
agent follows within a window, or within 30 s if libvirt's events do not reach it. It reads
vmplace.toml again on SIGHUP (`systemctl reload vmplace`); the log and `vmplace status` name what
changed. If libvirt does not answer, the policy of a new guest is not known: until it is, vmplace
changes nothing of that guest.

A mistake leaves the guest alone; `vmplace status` and `why` name line, cause and cure. Other guests
are not affected. `vmplace policy validate FILE` finds mistakes. An element, extra spec or
annotation that this version does not know is reported and ignored, unless it looks like a misspelt
key. Text or attributes of `<vmplace:policy>` itself are mistakes: each value stands in the element
of its key. So is a `<vmplace:policy>` of another namespace than `{NAMESPACE}`.
"""


def _tail() -> str:
    return f"""## Limits

A domain's XML with a document type, more than {MAX_DEPTH} levels or more than {MAX_BYTES >> 20} MiB
is refused. Its guest is left alone.

The libvirt hook may rewrite `<numatune>` from strict to restrictive when a guest arrives by
migration or is restored. It does so if the domain's XML holds a policy (1 or 2 above) that says
mode "auto" itself, with the technique "move". It does not rewrite a guest that is in mode "auto" by
vmplace.toml or by default. Nor does it where the policy has a mistake, or a key that this version
does not know. `vmplace policy apply --config GUEST` rewrites it for the next start. The nodes stay
the same.
"""


def schema() -> str:
    """Return the RELAX NG schema of the policy element."""
    words = "\n".join(f"        <optional>\n{_rule(key)}\n        </optional>" for key in KEYS)
    known = "\n".join(f"                <name>{key}</name>" for key in KEYS)
    return _SCHEMA.format(namespace=NAMESPACE, words=words, known=known)


def _rule(key: str) -> str:
    return f'          <element name="{key}">\n{_content(key)}\n          </element>'


def _content(key: str) -> str:
    pad = "            "
    if key in CHOICES:
        values = "\n".join(f"{pad}  <value>{value}</value>" for value in CHOICES[key])
        return f"{pad}<choice>\n{values}\n{pad}</choice>"
    if key in RANGES:
        low, high = RANGES[key]
        return (
            f'{pad}<data type="nonNegativeInteger">\n{pad}  <param name="minInclusive">{low}</param>\n'
            f'{pad}  <param name="maxInclusive">{high}</param>\n{pad}</data>'
        )
    pattern = re.sub(r"&", "&amp;", PATTERNS[key])
    return f'{pad}<data type="token">\n{pad}  <param name="pattern">{pattern}</param>\n{pad}</data>'


_SCHEMA = """<?xml version="1.0" encoding="UTF-8"?>
<!-- The policy element of vmplace under <metadata> of a libvirt domain; docs/policy-reference.md. -->
<grammar xmlns="http://relaxng.org/ns/structure/1.0" ns="{namespace}"
         datatypeLibrary="http://www.w3.org/2001/XMLSchema-datatypes">
  <start>
    <element name="policy">
      <interleave>
{words}
        <zeroOrMore>
          <element>
            <nsName>
              <except>
{known}
              </except>
            </nsName>
            <text/>
          </element>
        </zeroOrMore>
      </interleave>
    </element>
  </start>
</grammar>
"""


def main() -> None:
    """Write both files anew."""
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
