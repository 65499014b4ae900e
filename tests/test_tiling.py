"""Tiles: cover every pixel once, start on the grid, see enough, and never reach outside the image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srnet.tiling import Region, plan_tiles, split

SIDES = st.integers(1, 150)


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, st.integers(0, 200), st.integers(0, 40), st.sampled_from([1, 3, 4, 8]))
def test_cores_cover_each_pixel_once_and_windows_see_the_overlap(
    height: int, width: int, tile: int, overlap: int, grid: int
) -> None:
    covered = np.zeros((height, width), dtype=int)
    limit = -(-tile // grid) * grid if tile else max(height, width)
    for step in plan_tiles(height, width, tile, overlap, grid):
        core, window = step.core, step.window
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
    cores = [step.core for step in plan_tiles(100, 130, 32, 8, 8)]
    assert [(c.top, c.left) for c in cores] == sorted((c.top, c.left) for c in cores)
    assert len({(c.top, c.bottom) for c in cores}) == len({c.top for c in cores})


def test_parts_are_near_equal_instead_of_leaving_a_sliver() -> None:
    assert [r.width for r in split(Region(0, 8, 0, 264), 256, 8)] == [136, 128]


def test_a_tile_larger_than_the_image_is_the_image() -> None:
    (step,) = plan_tiles(24, 40, 64, 16, 8)
    assert step.core == step.window == Region(0, 24, 0, 40)


@pytest.mark.parametrize(
    "arguments", [(0, 5, 8, 0, 8), (5, 0, 8, 0, 8), (5, 5, -1, 0, 8), (5, 5, 8, -1, 8)]
)
def test_sizes_out_of_range_are_refused(arguments: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"at least"):
        plan_tiles(*arguments)
