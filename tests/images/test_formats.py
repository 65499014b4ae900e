"""What a format can hold."""

import pytest

from srnet.errors import ImageError
from srnet.images.formats import check_target


def test_limits_of_a_format_are_known_before_writing():
    check_target("webp", 16383, 9)
    with pytest.raises(ImageError, match=r"16400 x 8 is over the webp limit of 16383"):
        check_target("webp", 16400, 8)
