"""Write a provider.yaml with vmplace's traits, which Nova reads when nova-compute starts.

Nova takes custom traits and resource classes only, once, at the start of nova-compute; it gives them to
the compute node's own provider (docs.openstack.org/nova, "Managing Resource Providers Using Config Files").
"""

from collections.abc import Sequence

HERE = "CUSTOM_VMPLACE"
"""On the compute node: there is an agent."""
ACTS = "CUSTOM_VMPLACE_AUTO"
"""On the compute node: guests are placed unless their flavour says otherwise."""


def provider_config(traits: Sequence[str]) -> str:
    """Return the file; ``traits`` are names of custom traits."""
    listed = "".join(f"        - {trait}\n" for trait in traits)
    return (
        "# Written by vmplace openstack provider-config.  nova-compute reads it when it starts.\n"
        "meta:\n"
        "  schema_version: '1.0'\n"
        "providers:\n"
        "  - identification:\n"
        "      uuid: $COMPUTE_NODE\n"
        "    traits:\n"
        "      additional:\n"
        f"{listed}"
    )
