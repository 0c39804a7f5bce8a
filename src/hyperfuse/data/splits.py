"""Which parts of which scenes are trained on, and which are kept for testing.

`disjoint`: no test pixel influences a training pixel.

- Of five or more images of one data set (or of one sensor, with as many bands) a fifth is held out whole; of a complete
  CAVE or Harvard those that the paper tests on.
- Any other scene loses a strip at the far end of its longer side, a fifth of it but at least 16 pixels, to testing, and
  next to it a guard band as wide as the PSF reaches.
- Where the rest has no room for a patch, patches shrink to the next multiple of 8. Where they would shrink to less than
  half, the scene is not divided: all of it is for training, or, if it is smaller than 8 pixels, for testing.

`paper`: the patches and test blocks of the paper. Its remote sensing scores are measured on pixels that it trained on,
which `Split.overlapping` records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hyperfuse.data.datasets import DATASETS
from hyperfuse.data.scenes import Scene
from hyperfuse.errors import OptionError
from hyperfuse.physics.observation import psf_radius, sigma_from_fwhm

SplitKind = Literal["disjoint", "paper"]
Size = tuple[int, int]

IMAGES_OF_A_SET = 5
# One in this many images, or pixels of the longer side, is for testing.
TEST_SHARE = 5
SMALLEST_TEST_SIDE = 16
LARGEST_TEST_SIDE = 512
SIZE_STEP = 8
# A patch with a larger fraction of pixels without value would teach how holes were filled.
MOST_MISSING = 0.1
USUAL_SCALE = 4.0


@dataclass(frozen=True)
class SceneWindow:
    """A training patch or test block; `scene` is the index in the list of scenes."""

    scene: int
    top: int
    left: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + self.width)


@dataclass(frozen=True)
class Split:
    """Training patches and test blocks; `overlapping`: test pixels were trained on, which every score has to say."""

    train: list[SceneWindow]
    test: list[SceneWindow]
    overlapping: bool
    label: str


@dataclass(frozen=True)
class PaperDivision:
    """How the paper divides a data set: patches at a stride, square test blocks in reading order from the upper left,
    and which images (in alphabetical order) are for testing; None: the blocks lie in the scene that is trained on.
    """

    stride: int
    block: int
    blocks: int = 1
    test_images: range | None = None


# The paper's table swaps the block sizes of PaviaC and PaviaU, which do not fit into PaviaU, and gives WDC fewer rows
# than it has.
PAPER: dict[str, PaperDivision] = {
    "CAVE": PaperDivision(stride=32, block=512, test_images=range(10)),
    "Harvard": PaperDivision(stride=128, block=1024, test_images=range(67, 77)),
    "PaviaC": PaperDivision(stride=16, block=512, blocks=2),
    "PaviaU": PaperDivision(stride=16, block=256, blocks=2),
    "Chikusei": PaperDivision(stride=32, block=1024, blocks=4),
    "Botswana": PaperDivision(stride=16, block=256, blocks=5),
    "WDC": PaperDivision(stride=16, block=256, blocks=5),
}


def guard_width(scale: float = USUAL_SCALE, shift: float = 0.0) -> int:
    """Return the distance in fine pixels over which a coarse pixel is influenced, at this scale and shift."""
    return psf_radius(sigma_from_fwhm(scale)) + math.ceil(abs(shift))


def split_scenes(
    scenes: Sequence[Scene],
    kind: SplitKind = "disjoint",
    patch_size: int = 128,
    stride: int | None = None,
    guard: int | None = None,
) -> Split:
    """Divide scenes, which may differ in bands and size, into training patches and test blocks.

    The default `stride` from one patch to the next is the paper's own, or half a patch; the default `guard`, pixels
    between training and testing that belong to neither, is the radius of the PSF at x4.
    """
    if patch_size < SIZE_STEP or (stride is not None and stride < 1) or (guard is not None and guard < 0):
        got = f"patches of {patch_size}, stride {stride}, guard {guard}"
        raise OptionError(got, f"patches of {SIZE_STEP} or more, stride 1, guard 0")
    if kind == "paper":
        return _paper_split(scenes, patch_size, stride)
    if kind != "disjoint":
        raise OptionError(f"split {kind!r}", "disjoint or paper")
    return _disjoint_split(scenes, patch_size, stride, guard_width() if guard is None else guard)


def train_on_all(scenes: Sequence[Scene], patch_size: int, stride: int | None = None) -> Split:
    """Take patches of whole scenes, where other scenes are for testing."""
    patches = [_patches(index, scene, scene.size, patch_size, stride) for index, scene in enumerate(scenes)]
    return Split(list(chain.from_iterable(patches)), [], overlapping=False, label="whole scenes for training")


def keep_for_testing(scenes: Sequence[Scene]) -> Split:
    """Keep whole scenes for testing."""
    blocks = [SceneWindow(index, 0, 0, *scene.size) for index, scene in enumerate(scenes)]
    return Split([], blocks, overlapping=False, label="other scenes for testing")


def _disjoint_split(scenes: Sequence[Scene], patch_size: int, stride: int | None, guard: int) -> Split:
    train: list[SceneWindow] = []
    test: list[SceneWindow] = []
    counts = {"in blocks": 0, "tested whole": 0, "trained on whole": 0}
    for group in _groups(scenes):
        held_out = _held_out(group, scenes) if len(group) >= IMAGES_OF_A_SET else None
        for index in group:
            scene = scenes[index]
            if held_out is None:
                area, blocks = _divide(index, scene.size, patch_size, guard)
            else:
                area, blocks = _whole(index, scene.size, for_testing=index in held_out)
            counts["in blocks" if blocks and area else "tested whole" if blocks else "trained on whole"] += 1
            test += blocks
            if area is not None:
                train += _patches(index, scene, area, patch_size, stride)
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return Split(train, test, overlapping=False, label=f"disjoint ({parts}; guard {guard} pixels)")


def _groups(scenes: Sequence[Scene]) -> list[list[int]]:
    """Indices of scenes of one kind: of one data set, else of one sensor, with the same number of bands."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, scene in enumerate(scenes):
        groups.setdefault((scene.dataset or scene.sensor, scene.bands), []).append(index)
    return list(groups.values())


def _held_out(group: Sequence[int], scenes: Sequence[Scene]) -> frozenset[int]:
    name = scenes[group[0]].dataset
    paper = PAPER.get(name)
    if paper is not None and paper.test_images is not None and len(group) == DATASETS[name].images:
        return frozenset(group[image] for image in paper.test_images)
    return frozenset(group[TEST_SHARE // 2 :: TEST_SHARE])


def _whole(index: int, size: Size, *, for_testing: bool) -> tuple[Size | None, list[SceneWindow]]:
    return (None, [SceneWindow(index, 0, 0, *size)]) if for_testing or min(size) < SIZE_STEP else (size, [])


def _divide(index: int, size: Size, patch_size: int, guard: int) -> tuple[Size | None, list[SceneWindow]]:
    """The upper left rows and columns that are trained on, and the blocks that are tested on."""
    length, breadth = max(size), min(size)
    test = max(SMALLEST_TEST_SIDE, length // TEST_SHARE // SIZE_STEP * SIZE_STEP)
    rest = length - test - guard
    if 2 * _fitting(patch_size, min(rest, breadth)) < patch_size:
        return _whole(index, size, for_testing=False)
    if size[0] >= size[1]:
        return (rest, breadth), list(_blocks(index, (length - test, 0), (test, breadth)))
    return (breadth, rest), list(_blocks(index, (0, length - test), (breadth, test)))


def _blocks(index: int, corner: Size, size: Size) -> Iterator[SceneWindow]:
    """Divide a rectangle into blocks of at most 512 pixels on a side."""
    edges = []
    for start, length in zip(corner, size, strict=True):
        parts = -(-length // LARGEST_TEST_SIDE)
        inner = [start + length * part // parts // SIZE_STEP * SIZE_STEP for part in range(1, parts)]
        edges.append([start, *inner, start + length])
    for (top, bottom), (left, right) in product(pairwise(edges[0]), pairwise(edges[1])):
        yield SceneWindow(index, top, left, bottom - top, right - left)


def _fitting(patch_size: int, room: int) -> int:
    return patch_size if patch_size <= room else max(0, room) // SIZE_STEP * SIZE_STEP


def _patches(index: int, scene: Scene, area: Size, patch_size: int, stride: int | None) -> list[SceneWindow]:
    """Patches over all of an area, the last ones at its far edges, but for those with too many holes."""
    size = _fitting(patch_size, min(area))
    if not size:
        return []
    step = stride or max(1, size // 2)
    tops, lefts = (sorted({*range(0, length - size + 1, step), length - size}) for length in area)
    windows = [SceneWindow(index, top, left, size, size) for top, left in product(tops, lefts)]
    if scene.missing_pixels is None:
        return windows
    sums: NDArray[np.int64] = np.zeros((scene.size[0] + 1, scene.size[1] + 1), np.int64)
    sums[1:, 1:] = scene.missing_pixels.cumsum(axis=0, dtype=np.int64).cumsum(axis=1)
    y, x = np.array([(window.top, window.left) for window in windows]).T
    missing = sums[y + size, x + size] - sums[y, x + size] - sums[y + size, x] + sums[y, x]
    return [window for window, count in zip(windows, missing, strict=True) if count <= MOST_MISSING * size**2]


def _paper_split(scenes: Sequence[Scene], patch_size: int, stride: int | None) -> Split:
    train: list[SceneWindow] = []
    test: list[SceneWindow] = []
    shared = []
    for group in _groups(scenes):
        name = scenes[group[0]].dataset
        division = _require_division(name, [scenes[index] for index in group])
        tested = division.test_images
        for image, index in enumerate(group):
            size = scenes[index].size
            if tested is None or image not in tested:
                train += _regular_grid(index, size, patch_size, stride or division.stride)
            if tested is None or image in tested:
                test += _regular_grid(index, size, division.block, division.block)[: division.blocks]
        shared += [name] if tested is None else []
    overlap = f" (overlapping: test pixels of {', '.join(shared)} were trained on)" if shared else ""
    return Split(train, test, overlapping=bool(shared), label=f"the paper's{overlap}")


def _regular_grid(index: int, size: Size, patch_size: int, stride: int) -> list[SceneWindow]:
    """Patches at a stride, as many as fit, in reading order."""
    tops, lefts = (range(0, length - patch_size + 1, stride) for length in size)
    return [SceneWindow(index, top, left, patch_size, patch_size) for top, left in product(tops, lefts)]


def _require_division(name: str, scenes: Sequence[Scene]) -> PaperDivision:
    if name not in PAPER:
        raise OptionError(
            f"the paper's split of {scenes[0].name}",
            f"a data set that the paper divides: {', '.join(PAPER)}",
            "take the disjoint split",
        )
    images, size = DATASETS[name].images, DATASETS[name].size
    if len(scenes) != images or any(scene.size != size for scene in scenes):
        raise OptionError(
            f"{len(scenes)} images of {name}, the first of {scenes[0].size[0]}x{scenes[0].size[1]} pixels",
            f"{images} of {size[0]}x{size[1]}, as in the paper",
            "get the whole data set, or take the disjoint split",
        )
    return PAPER[name]
