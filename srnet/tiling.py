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


@dataclass(frozen=True)
class Tile:
    """One step of a tiled run.

    Attributes:
        core: The part of the image whose result is kept.
        window: The part the network sees: the core and its overlap, clipped at the image's border.
    """

    core: Region
    window: Region


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


def plan_tiles(height: int, width: int, tile: int, overlap: int, grid: int) -> list[Tile]:
    """Plans a tiled run, row by row from the top left.

    Args:
        height: Rows of the image, LR pixels, at least 1.
        width: Columns of the image, LR pixels, at least 1.
        tile: Largest side of a core, LR pixels, rounded up to the grid; 0 takes the whole image as one tile.
        overlap: Least extension of a window beyond its core, LR pixels; the receptive field gives the exact result.
        grid: Side of the network's query groups, LR pixels.

    Returns:
        Tiles whose cores cover every pixel once and whose windows start on the grid.

    Raises:
        ValueError: If a size is out of range.
    """
    if height < 1 or width < 1:
        raise ValueError(
            f"an image of {width} x {height} pixels has no tiles; both sides must be at least 1"
        )
    if tile < 0 or overlap < 0 or grid < 1:
        raise ValueError(
            f"tile {tile} and overlap {overlap} must be at least 0, grid {grid} at least 1"
        )
    whole = Region(0, height, 0, width)
    cores = split(whole, tile or max(height, width), grid)
    return [Tile(core, window_of(core, height, width, overlap, grid)) for core in cores]
