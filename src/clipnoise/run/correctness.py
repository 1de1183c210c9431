"""Which test examples a run predicts right, a bit for each."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from clipnoise.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packed(right: NDArray[np.bool_]) -> str:
    """Return bits as text: eight to a byte, the first one the highest, in Base64.

    Args:
        right: whether each example is predicted right, bool of shape (n,).
    """
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpacked(text: str, examples: int) -> NDArray[np.bool_]:
    """Return what `packed` was given, bool of shape (examples,).

    Raises:
        ValueError: the text is not that of so many bits.
    """
    held = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    if len(held) != -(-examples // 8) or np.unpackbits(held)[examples:].any():
        raise ValueError(f"the bits are not those of {examples} examples")
    return np.unpackbits(held, count=examples).astype(bool)
