"""Tiles: cover every pixel once, start on the grid, see enough, and never reach outside the image."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from srnet.tiling import Region, split, window_of

SIDES = st.integers(1, 150)


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, st.integers(1, 200), st.integers(0, 40), st.sampled_from([1, 3, 4, 8]))
def test_cores_cover_each_pixel_once_and_windows_see_the_overlap(
    height: int, width: int, tile: int, overlap: int, grid: int
) -> None:
    covered = np.zeros((height, width), dtype=int)
    limit = -(-tile // grid) * grid
    for core in split(Region(0, height, 0, width), tile, grid):
        window = window_of(core, height, width, overlap, grid)
        covered[core.top : core.bottom, core.left : core.right] += 1
        assert 0 < core.height <= limit
        assert 0 < core.width <= limit
        for origin in (core.top, core.left, window.top, window.left):
            assert origin % grid == 0
        assert 0 <= window.top <= max(core.top - overlap, 0)
        assert 0 <= window.left <= max(core.left - overlap, 0)
        assert height >= window.bottom >= min(core.bottom + overlap, height)
        assert width >= window.right >= min(core.right + overlap, width)
        # no more than the overlap and the grid ask for
        assert window.height <= core.height + 2 * overlap + 4 * grid
    assert (covered == 1).all()


def test_rows_come_from_the_top_so_that_the_output_can_be_streamed() -> None:
    cores = split(Region(0, 100, 0, 130), 32, 8)
    assert [(c.top, c.left) for c in cores] == sorted((c.top, c.left) for c in cores)
    assert len({(c.top, c.bottom) for c in cores}) == len({c.top for c in cores})


def test_parts_are_near_equal_instead_of_leaving_a_sliver() -> None:
    assert [r.width for r in split(Region(0, 8, 0, 264), 256, 8)] == [136, 128]


def test_a_tile_larger_than_the_image_is_the_image() -> None:
    image = Region(0, 24, 0, 40)
    assert split(image, 64, 8) == [image]
    assert window_of(image, 24, 40, 16, 8) == image
