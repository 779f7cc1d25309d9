"""On which node is a frame?  By sysfs memory blocks: exact, and no system call per page."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace.errors import UnsupportedHostError
from vmplace.outside import read_whole
from vmplace.sampling.page_arrays import NodeIndexes
from vmplace.topology.guest import PAGE_BYTES

Frames = npt.NDArray[np.uint64]

UNKNOWN = -1
SEVERAL = -2
"""A block whose frames are on more than one node (boot memory need not end at a block's border)."""


@dataclass(frozen=True)
class FrameNodes:
    """The node of each memory block, as index into ``nids``; ``block_frames`` is a power of two."""

    nids: tuple[int, ...]
    block_frames: int
    blocks: NodeIndexes

    def node_index(self, pfns: Frames) -> NodeIndexes:
        """Return the node index of each frame: UNKNOWN for frame 0 and unlisted ones, or SEVERAL."""
        block = pfns >> np.uint64(self.block_frames.bit_length() - 1)
        # The last entry stands for all blocks behind the list.
        np.minimum(block, np.uint64(len(self.blocks) - 1), out=block)
        index: NodeIndexes = self.blocks[block.view(np.int64)]
        index[pfns == 0] = UNKNOWN
        return index


def read_frame_nodes(nids: tuple[int, ...], sysfs: Path = Path("/sys")) -> FrameNodes:
    """Read the memory blocks of the nodes; raises UnsupportedHostError on a kernel that lists none."""
    try:
        block_bytes = read_whole(sysfs / "devices/system/memory/block_size_bytes", base=16)
    except OSError as err:
        raise UnsupportedHostError(
            "the kernel lists no memory blocks", hint="a kernel with CONFIG_MEMORY_HOTPLUG lists them"
        ) from err
    owners = [(block, index) for index, nid in enumerate(nids) for block in _read_blocks(nid, sysfs)]
    blocks = np.full(max((block for block, _ in owners), default=-1) + 2, UNKNOWN, np.int8)
    for block, index in owners:
        blocks[block] = index if blocks[block] == UNKNOWN else SEVERAL
    return FrameNodes(nids, block_bytes // PAGE_BYTES, blocks)


def _read_blocks(nid: int, sysfs: Path) -> list[int]:
    found = (sysfs / f"devices/system/node/node{nid}").glob("memory[0-9]*")
    return [int(path.name.removeprefix("memory")) for path in found]
