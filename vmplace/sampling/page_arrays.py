"""Types of arrays that have an entry for each page, or a bit."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint64]
NodeIndexes = npt.NDArray[np.int8]
Indexes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def unpacked(words: Bits, npages: int) -> Bytes:
    """Return a byte of 0 or 1 for each of the first ``npages`` bits."""
    return np.unpackbits(words.view(np.uint8), count=npages, bitorder="little")
