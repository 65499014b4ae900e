"""Plans the tiles of an image: cores that share it out without overlap, and the windows a network must see for them.

The network's query groups sit on a grid anchored at the image's origin. Every window here starts on that grid, so a
window whose overlap covers the receptive field gives exactly what the whole image gives.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Region:
    """A rectangle of LR pixels: rows top to bottom - 1, columns left to right - 1."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left


def round_up(value: int, grid: int) -> int:
    """Smallest multiple of grid that is at least value."""
    return -(-value // grid) * grid


def window_of(core: Region, height: int, width: int, overlap: int, grid: int) -> Region:
    """Extends a core by the overlap, outwards to the grid, clipped at the image's border.

    Args:
        core: Part of the image whose result is wanted; top and left are multiples of grid.
        height: Rows of the image, LR pixels.
        width: Columns of the image, LR pixels.
        overlap: Least extension on every side, LR pixels, at least 0.
        grid: Side of the network's query groups, LR pixels.

    Returns:
        The window; top and left are multiples of grid.
    """
    reach = round_up(overlap, grid)
    return Region(
        top=max(core.top - reach, 0),
        bottom=min(round_up(core.bottom, grid) + reach, height),
        left=max(core.left - reach, 0),
        right=min(round_up(core.right, grid) + reach, width),
    )


def split(region: Region, tile: int, grid: int) -> list[Region]:
    """Shares out a region in near-equal parts with sides of at most tile pixels, row by row from the top left.

    Args:
        region: What to share out; top and left are multiples of grid.
        tile: Largest side of a part, LR pixels, rounded up to the grid.
        grid: Side of the network's query groups, LR pixels.

    Returns:
        Parts whose top and left are multiples of grid; together they cover every pixel once.
    """

    def cuts(start: int, stop: int) -> list[int]:
        parts = -(-(stop - start) // round_up(tile, grid))
        step = round_up(-(-(stop - start) // parts), grid)
        return [*range(start, stop, step), stop]

    rows, columns = cuts(region.top, region.bottom), cuts(region.left, region.right)
    return [
        Region(top, bottom, left, right)
        for top, bottom in pairwise(rows)
        for left, right in pairwise(columns)
    ]
