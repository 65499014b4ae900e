"""Writes the photographs that ship inside scikit-image and scikit-learn as a small training and validation set.

They are what configs/smoke.yaml trains on, so that training can be tried and tested anywhere, without a download.
"""

import argparse
import importlib.resources
from pathlib import Path

from PIL import Image

TRAIN = {
    "skimage.data": [
        "coffee.png",
        "rocket.jpg",
        "retina.jpg",
        "motorcycle_left.png",
        "ihc.png",
        "brick.png",
    ],
    "sklearn.datasets.images": ["china.jpg"],
}
VALIDATION = {
    "skimage.data": ["astronaut.png", "chelsea.png"],
    "sklearn.datasets.images": ["flower.jpg"],
}


def main() -> None:
    """Writes train/ and validation/ under the given folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data/smoke"))
    folder = parser.parse_args().folder
    for split, sources in (("train", TRAIN), ("validation", VALIDATION)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for package, files in sources.items():
            for file in files:
                with Image.open(str(importlib.resources.files(package) / file)) as image:
                    image.convert("RGB").save((folder / split / file).with_suffix(".png"))
    print(folder)


if __name__ == "__main__":
    main()
