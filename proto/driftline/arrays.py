"""Names for the numpy arrays that both agents pass around: one for each type of element.

Shapes stand in the docstrings of the functions that take or return them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]  # of rows in the key domain (protocol, section 4)
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
