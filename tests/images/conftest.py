import numpy as np
import pytest


@pytest.fixture(scope="session")
def noise():
    """A function: shape and dtype -> random pixels over the whole range, float ones in [0, 1)."""
    random = np.random.default_rng(0)

    def make(*shape, dtype=np.uint8):
        high = 1 if dtype == np.float32 else np.iinfo(dtype).max
        return (random.random(shape) * high).astype(dtype)

    return make
