"""Augmentation: the random view of an image that a training step sees.

A view is a function of the step's key and the example's index alone, like a dropout mask, so that
what an example adds to a sum does not depend on who else is in the batch, on how the batch is cut
or on whether the run was resumed. A step sees one view of an example, at every iterate: it pays for
one gradient, whichever view it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from clipnoise.lazy import Tensor, np, torch
from clipnoise.seeds import words

Augmentation = Literal["none", "crop-flip", "autoaugment-flip"]

PADDING = 4  # black pixels at each edge, before a crop
GREY = 128  # what AutoAugment fills uncovered corners with


def augmented(kind: Augmentation, images: Tensor, key: int, indices: np.ndarray) -> Tensor:
    """Return one view of each image.

    Args:
        kind: how they are changed.
        images: bytes of shape (b, channels, height, width).
        key: of the run and the step; 64 bits.
        indices: of the examples in their dataset, shape (b,).

    Returns:
        Bytes of the same shape.
    """
    return VIEWS[kind](images, words(key, indices, 3))


def cropped_and_flipped(images: Tensor, draws: np.ndarray) -> Tensor:
    """Pad with black, crop to the old size at a random place, and mirror half of the images.

    Args:
        images: bytes of shape (b, channels, height, width).
        draws: uint64 of shape (b, 3): vertical place, horizontal place, mirrored or not.

    Source: DP-AdamBC's released code, jax_implementation/data_utils/datasets.py.
    """
    count, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    down, right = ((draws[:, i] % (2 * PADDING + 1)).astype("int64") for i in (0, 1))
    rows = torch.from_numpy(down[:, None] + np.arange(height))
    columns = torch.from_numpy(right[:, None] + np.arange(width))
    cropped = padded[
        torch.arange(count).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return mirrored(cropped, draws[:, 2])


def autoaugmented_and_flipped(images: Tensor, draws: np.ndarray) -> Tensor:
    """Apply AutoAugment's policy for CIFAR-10, then mirror half of the images.

    Args:
        images: bytes of shape (b, channels, height, width), 1 or 3 channels.
        draws: uint64 of shape (b, 3): the seed of the policy's own draws, unused, mirrored or not.

    Source: Cubuk et al. 2019, "AutoAugment"; DP-PMLF's released code, data_utils.py, which shears
    with bicubic interpolation, where this takes the nearest pixel.
    """
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    policy = AutoAugment(AutoAugmentPolicy.CIFAR10, fill=[GREY] * images.shape[1])
    views = []
    with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global stream
        for image, seed in zip(images, draws[:, 0], strict=True):
            torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
            views.append(policy(image))
    return mirrored(torch.stack(views) if views else images, draws[:, 2])


def mirrored(images: Tensor, draws: np.ndarray) -> Tensor:
    """Mirror, left to right, the images whose draw has its highest bit set."""
    chosen = torch.from_numpy((draws >> np.uint64(63)).astype(bool))
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


VIEWS: dict[Augmentation, Callable[[Tensor, np.ndarray], Tensor]] = {
    "none": lambda images, _: images,
    "crop-flip": cropped_and_flipped,
    "autoaugment-flip": autoaugmented_and_flipped,
}
