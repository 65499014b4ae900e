"""Mixes a larger network's results into training targets, from which a smaller one learns a little more.

    python scripts/distill_targets.py srnet-small-x4 data/cid22 data/photos --output data/distilled
    srnet train CONFIG data.train=[data/distilled] data.hr_scales=[1]

Part of what a photograph holds cannot be known from its LR image; a good network's mean over eight views leaves that
out (knowledge distillation, https://arxiv.org/abs/1503.02531, at the pixels). The folder gets an LR and an HR image for
every training image at every size. A run that was stopped goes on when started again.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from srnet.atomic import atomic_output
from srnet.checkpoint import load_checkpoint
from srnet.config import DataConfig
from srnet.datasets import read_pair
from srnet.degradation import MARGIN
from srnet.errors import DataError, SRNetError
from srnet.images.encode import write
from srnet.inference import Upscaler
from srnet.pairs import Pair, find_pairs_in_roots, with_shrunk

SMALLEST = 48 + MARGIN  # LR pixels: the patches of the published runs and what degradation cuts off


def mixed(
    hr: npt.NDArray[np.uint8], sr: npt.NDArray[np.uint8], share: float
) -> npt.NDArray[np.uint8]:
    """Target between an HR image and a network's result, both (H, W, 3), of which the latter has this share."""
    mean = share * sr.astype(np.float32) + (1 - share) * hr.astype(np.float32)
    return np.floor(mean + 0.5).astype(np.uint8)


def keep_settings(output: Path, settings: dict[str, object]) -> None:
    """Writes down what the folder is made with.

    Raises:
        DataError: It was begun with other settings, or is something else's.
    """
    file = output / "distilled.json"
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = ", ".join(key for key in settings if before.get(key) != settings[key])
        if changed:
            raise DataError(
                f"{output} was begun with different settings ({changed}); use a new folder"
            )
        return
    if output.exists() and any(output.iterdir()):
        raise DataError(f"{output} is not empty; use a new folder")
    output.mkdir(parents=True, exist_ok=True)
    with atomic_output(file) as partial:
        partial.write_text(json.dumps(settings), encoding="utf-8")


def named(pairs: list[Pair]) -> dict[str, Pair]:
    """The pairs by the names of their files in the one folder.

    Raises:
        DataError: Two would get the same name, so that one of them would be lost.
    """
    files: dict[str, Pair] = {}
    for pair in pairs:
        name = pair.name.replace("/", "_") + ".png"
        if name in files:
            raise DataError(f"{files[name].hr} and {pair.hr} would both be {name}; rename one")
        files[name] = pair
    return files


def distill(pairs: dict[str, Pair], teacher: Upscaler, share: float, output: Path) -> None:
    """Writes LR and mixed HR of every pair that is not there yet."""
    folders = {"LR": output / "LR" / f"X{teacher.scale}", "HR": output / "HR"}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for i, (name, pair) in enumerate(pairs.items(), 1):
        if not (folders["HR"] / name).exists():
            lr, hr = read_pair(pair, teacher.scale)
            sr = teacher(np.array(lr))
            write(folders["LR"] / name, lr, "png")
            write(folders["HR"] / name, mixed(hr, sr, share), "png")  # last: it says that both are
        print(f"\r{i}/{len(pairs)} images", end="", file=sys.stderr)
    print(file=sys.stderr)


def main() -> int:
    """Reads the command line; returns 2 after one line when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", help="name or path of the larger network")
    parser.add_argument("roots", nargs="+", type=Path, help="folders of training images")
    parser.add_argument("--output", required=True, type=Path, help="new folder")
    parser.add_argument("--share", type=float, default=0.5, help="of the teacher in the targets")
    parser.add_argument("--hr-scales", nargs="+", type=float, default=[1, 0.75, 0.5])
    args = parser.parse_args()
    try:
        if not 0 <= args.share <= 1:
            raise DataError(f"--share is {args.share}; use 0 to 1")
        DataConfig(train=(), hr_scales=tuple(args.hr_scales))  # refuses what training refuses
        loaded = load_checkpoint(args.teacher)
        found = find_pairs_in_roots(args.roots, loaded.network.scale)
        pairs = named(with_shrunk(found, args.hr_scales, loaded.network.scale, SMALLEST))
        settings: dict[str, object] = {
            "teacher": loaded.sha256,
            "share": args.share,
            "images": {name: str(pair.hr.resolve()) for name, pair in pairs.items()},
        }
        keep_settings(args.output, settings)
        teacher = Upscaler(loaded.network, self_ensemble=True)
        distill(pairs, teacher, args.share, args.output)
    except (SRNetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
