"""HR images and their LR partners on disk: found by name, checked by one scan. Needs no torch."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from srnet.errors import DataError, ImageError
from srnet.images.decode import read_header, read_rgb8
from srnet.images.formats import SUFFIXES

IMAGE_SUFFIXES = tuple(SUFFIXES)
"""File name endings, in lower case, that count as images; every other file is ignored."""

_SHOWN = 5


@dataclass(frozen=True)
class Pair:
    """One HR image and, where it is published, its LR image."""

    name: str
    """Unique within its list: the file name without ending and without the suffix that marks HR."""
    hr: Path
    lr: Path | None
    """None: the LR image is made from the HR image by `srnet.resize.downscale`."""
    hr_scale: float = 1.0
    """Factor by which the HR file is shrunk first; other than 1 only without LR file."""


@dataclass(frozen=True)
class Problem:
    """Why one pair cannot be used."""

    name: str
    path: Path
    text: str


def find_pairs(root: Path, scale: int, *, allow_orphans: bool = False) -> list[Pair]:
    """Find the HR images of one data set and the LR images that belong to them.

    `root` is the HR folder, or the folder that holds it. These layouts are known, for scale 4:

    - `DIV2K_train_HR/0001.png` with `DIV2K_train_LR_bicubic/X4/0001x4.png` beside it (any prefix, also none:
      `HR` with `LR_bicubic/X4`, `LR/X4`, `LR_x4`, `LRx4`, `LRbicx4` or `LR`);
    - `GTmod12/baby.png` with `LRbicx4/baby.png` (`GTmod12` is taken before `original`);
    - one folder of `img_001_SRF_4_HR.png` and `img_001_SRF_4_LR.png`, or of `baby_HR.png` and `baby_LR.png`;
    - a plain folder of HR images: LR images are made from them, as in the layouts above that lack this scale.

    Partners are found by name, never by order. The LR name may be the HR name, or end in `x4`, `_x4`, `-x4` or
    `_LR`; case and the Unicode form do not matter. Hidden files and files that are not images are ignored, folders
    below the image folders are not searched. LR folders of other names (`LR_unknown`) are not used.

    Args:
        root: HR folder or its parent.
        scale: Upscaling factor.
        allow_orphans: Leave out images without a partner instead of refusing the data set.

    Returns:
        The pairs, sorted by name.

    Raises:
        DataError: No images, several data sets in one folder, two files of one name, or images without partner.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"data folder {root} does not exist or is not a folder")
    hr_folder, hr_images = _choose_hr_folder(root, scale)
    beside = _split_folder(hr_folder, hr_images, scale)
    if beside is not None:
        hr_images, lr_images, others = beside
        lr_folder = hr_folder
    else:
        found = _lr_folder(hr_folder, scale)
        if found is None:
            return [Pair(_name(path), path, None) for _, path in sorted(hr_images.items())]
        lr_folder = found
        lr_images, others = images_in(lr_folder), []
    pairs, hr_orphans, lr_orphans = _match(hr_images, lr_images, scale)
    parts = [
        _orphans("without an LR partner", hr_folder, hr_orphans),
        _orphans("without an HR partner", lr_folder, lr_orphans),
        _orphans("that end in neither _HR nor _LR", hr_folder, others),
    ]
    text = "; ".join(part for part in parts if part)
    if not pairs:
        raise DataError(
            f"no image of {hr_folder} has a partner of the same name in {lr_folder}: {text}"
        )
    if text and not allow_orphans:
        raise DataError(
            f"{text}; add the partners, remove the images, or allow orphans to leave them out"
        )
    return pairs


def find_pairs_in_roots(
    roots: Sequence[Path], scale: int, *, allow_orphans: bool = False
) -> list[Pair]:
    """Find the pairs of several data sets; with more than one, names start with the folder: `cid22/0001`.

    Args:
        roots: Folders that `find_pairs` understands; as many parts of each path as it takes to tell them apart
            become the start of the names.
        scale: Upscaling factor.
        allow_orphans: As in `find_pairs`.

    Raises:
        DataError: No folder is given, one is given twice, or what `find_pairs` raises.
    """
    if not roots:
        raise DataError("no data folder is given")
    if len(roots) == 1:
        return find_pairs(Path(roots[0]), scale, allow_orphans=allow_orphans)
    resolved = [Path(root).resolve() for root in roots]
    for i, path in enumerate(resolved):
        if path in resolved[:i]:
            raise DataError(f"data folder {roots[i]} is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    return [
        Pair("/".join((*path.parts[-depth:], pair.name)), pair.hr, pair.lr)
        for root, path in zip(roots, resolved, strict=True)
        for pair in find_pairs(Path(root), scale, allow_orphans=allow_orphans)
    ]


def images_in(folder: Path) -> dict[str, Path]:
    """Map the comparable name of every visible image in `folder` to its path.

    Raises:
        DataError: Two files give the same name (`a.png` and `a.jpg`), or the folder cannot be read.
    """
    found: dict[str, Path] = {}
    for path in _entries(folder):
        if path.suffix.lower() not in IMAGE_SUFFIXES or path.is_dir():
            continue
        key = _key(path.stem)
        if key in found:
            raise DataError(
                f"{found[key].name} and {path.name} in {folder} give the same image name; "
                "rename or remove one of them"
            )
        found[key] = path
    return found


def _entries(folder: Path) -> list[Path]:
    """Return what is in `folder`, sorted, without hidden files and folders."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"data folder {folder} cannot be read: {error.strerror}") from error


def _name(path: Path) -> str:
    return unicodedata.normalize("NFC", path.stem)


def _key(stem: str) -> str:
    """Return `stem` as it is compared: composed Unicode (macOS stores it decomposed), case folded."""
    return unicodedata.normalize("NFC", stem).casefold()


def _hr_prefix(folder_name: str, scale: int) -> str | None:
    """Return what stands before `HR` in the name of an HR folder (often nothing), None for other folders."""
    found = re.fullmatch(
        rf"(.+[_-])?(?:hr|gt)|gtmod\d+|original|image_srf_{scale}", folder_name, re.IGNORECASE
    )
    return None if found is None else found.group(1) or ""


def _choose_hr_folder(root: Path, scale: int) -> tuple[Path, dict[str, Path]]:
    """Return the one folder of HR images that `root` is or holds, and its images."""
    folders = [path for path in _entries(root) if path.is_dir()]
    choices = [path for path in folders if _hr_prefix(path.name, scale) is not None]
    if any(path.name.lower().startswith("gtmod") for path in choices):
        choices = [path for path in choices if path.name.lower() != "original"]
    images = images_in(root)
    if images and not choices:
        return root, images
    if images or len(choices) > 1:
        names = [*([f"{len(images)} images of its own"] if images else []), *_names(choices)]
        raise DataError(
            f"{root} holds several data sets: {', '.join(names)}; give the folder of one of them"
        )
    if choices:
        images = images_in(choices[0])
        if images:
            return choices[0], images
        root = choices[0]
    held = (
        f"; it holds the folders {_listed(_names(folders))}, give one with HR images"
        if folders
        else ""
    )
    raise DataError(f"no images in {root} (looked for {', '.join(IMAGE_SUFFIXES)}){held}")


def _lr_folder(hr_folder: Path, scale: int) -> Path | None:
    """Return the folder beside `hr_folder` with its LR images of this scale, None where there is none."""
    hr_folder = Path(os.path.abspath(hr_folder))  # not resolved: the HR folder may be a link
    prefix = _hr_prefix(hr_folder.name, scale)
    if prefix is None:
        return None
    tails = (
        f"lr_bicubic/x{scale}",
        f"lr/x{scale}",
        f"lrbicx{scale}",
        f"lr_x{scale}",
        f"lrx{scale}",
        "lr",
    )
    wanted = {prefix.casefold() + tail for tail in tails}
    found = []
    for folder in _entries(hr_folder.parent):
        if folder.is_dir() and folder.name.casefold().startswith(f"{prefix}lr".casefold()):
            below = [path for path in _entries(folder) if path.is_dir()]
            found += [
                path
                for path in (folder, *below)
                if path.relative_to(hr_folder.parent).as_posix().casefold() in wanted
            ]
    # `LR` counts only when it holds images itself: it may be no more than the parent of `LR/X2`.
    found = [path for path in found if not path.name.casefold().endswith("lr") or images_in(path)]
    if len(found) > 1:
        raise DataError(
            f"several folders hold LR images of scale {scale} for {hr_folder}: "
            f"{', '.join(str(path) for path in found)}; keep one of them"
        )
    return found[0] if found else None


def _split_folder(
    folder: Path, images: dict[str, Path], scale: int
) -> tuple[dict[str, Path], dict[str, Path], list[str]] | None:
    """Split a folder that holds HR and LR images side by side.

    Returns:
        HR images, LR images, names of images that are neither; None where the folder holds HR images only.
    """
    marks = {key: re.search(r"(?:_srf_(\d+))?_(hr|lr)$", key) for key in images}
    kinds = {found.group(2) for found in marks.values() if found}
    if kinds != {"hr", "lr"}:
        return None
    scales = {found.group(1) for found in marks.values() if found and found.group(1)}
    if scales and str(scale) not in scales:
        raise DataError(
            f"{folder} holds pairs of scale {', '.join(sorted(scales))} (by _SRF_ in the names), not of scale {scale}"
        )
    sides: dict[str, dict[str, Path]] = {"hr": {}, "lr": {}}
    others = []
    for key, path in images.items():
        found = marks[key]
        if found is None:
            others.append(path.name)
        elif found.group(1) in (None, str(scale)):
            sides[found.group(2)][key] = path
    return sides["hr"], sides["lr"], others


def _match(
    hr: dict[str, Path], lr: dict[str, Path], scale: int
) -> tuple[list[Pair], list[str], list[str]]:
    """Pair images by the one naming convention that pairs most of them.

    One convention for a whole folder: with `a` and `ax4` on the HR side, `ax4` on the LR side can only be told
    from the other names whether it is the partner of the one or of the other.

    Returns:
        The pairs, and the file names of HR and of LR images that are left over.
    """
    x = f"x{scale}"
    conventions = [
        (f"_srf_{scale}_hr", f"_srf_{scale}_lr"),
        (f"_hr_{x}", f"_lr_{x}"),
        (f"_hr_{x}", f"_lrbi_{x}"),
        ("_hr", "_lr"),
        *(("", suffix) for suffix in ("", x, f"_{x}", f"-{x}", "_lr", f"_lr_{x}")),
    ]
    best: dict[str, str] = {}
    best_suffix = ""
    for hr_suffix, lr_suffix in conventions:
        partners = {
            key: partner
            for key in hr
            if key.endswith(hr_suffix)
            and (partner := key.removesuffix(hr_suffix) + lr_suffix) in lr
        }
        if len(partners) > len(best):
            best, best_suffix = partners, hr_suffix
    pairs = []
    for key in sorted(best):
        name = _name(hr[key])
        pairs.append(Pair(name[: len(name) - len(best_suffix)], hr[key], lr[best[key]]))
    taken = set(best.values())
    hr_orphans = [path.name for key, path in hr.items() if key not in best]
    return pairs, hr_orphans, [path.name for key, path in lr.items() if key not in taken]


def _orphans(what: str, folder: Path, names: Sequence[str]) -> str:
    return f"{len(names)} images {what} in {folder}: {_listed(names)}" if names else ""


def _names(paths: Iterable[Path]) -> list[str]:
    return [path.name for path in paths]


def _listed(names: Sequence[str]) -> str:
    """Return the first few of `names`, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def with_shrunk(
    pairs: Sequence[Pair], factors: Sequence[float], scale: int, min_lr_size: int
) -> list[Pair]:
    """Add copies of pairs whose HR image is shrunk, for training on more and sharper content.

    Args:
        pairs: The pairs as found.
        factors: Of the height and width of the HR images, each in (0, 1].
        scale: Upscaling factor.
        min_lr_size: Smallest height and width of an LR image; copies that would be smaller are left out.

    Returns:
        For each factor a copy of every pair; 1 keeps the pair as it is, others are named as in ``baby@0.5``.
    """
    made = []
    for factor in factors:
        for pair in pairs:
            if factor == 1:
                made.append(pair)
                continue
            copy = replace(pair, name=f"{pair.name}@{factor:g}", lr=None, hr_scale=factor)
            if min(hr_size(copy)) >= min_lr_size * scale:
                made.append(copy)
    return made


def scan(
    pairs: Sequence[Pair], scale: int, min_lr_size: int, *, verify: bool = False
) -> list[Problem]:
    """List what would stop training or evaluation, before it starts.

    Args:
        pairs: The pairs to look at.
        scale: Upscaling factor.
        min_lr_size: Smallest allowed height and width of an LR image, in LR pixels (the training patch).
        verify: Decode every pixel (finds truncated files) instead of reading headers only.

    Returns:
        At most one problem for each pair, in the order of `pairs`; empty when all is well.
    """
    problems = []
    for pair in pairs:
        path = pair.hr
        try:
            size = hr_size(pair, verify=verify)
            if pair.lr is not None:
                path = pair.lr
                check_ratio(size, image_size(pair.lr, verify=verify), scale)
            lr_size = (size[0] // scale, size[1] // scale)
            if min(lr_size) < min_lr_size:
                sizes = (
                    f"HR {by(size)} gives LR {by(lr_size)}"
                    if pair.lr is None
                    else f"LR is {by(lr_size)}"
                )
                raise DataError(f"{sizes}, smaller than {min_lr_size}x{min_lr_size}")
        except DataError as error:
            problems.append(Problem(pair.name, path, str(error)))
    return problems


def summarise(problems: Sequence[Problem]) -> str:
    """Return what `scan` found as one line for an error message.

    Args:
        problems: At least one problem.
    """
    shown = "; ".join(f"{problem.path}: {problem.text}" for problem in problems[:3])
    more = (
        f"; and {len(problems) - 3} more (`srnet data check` lists all)"
        if len(problems) > 3
        else ""
    )
    return f"{len(problems)} images cannot be used: {shown}{more}; replace or remove them"


def format_problems(problems: Sequence[Problem]) -> str:
    """Return `problems` as a table of three columns: name, problem, file; empty for no problems."""
    names = max((len(problem.name) for problem in problems), default=0)
    texts = max((len(problem.text) for problem in problems), default=0)
    return "\n".join(f"{p.name:<{names}}  {p.text:<{texts}}  {p.path}" for p in problems)


def image_size(path: Path, *, verify: bool = False) -> tuple[int, int]:
    """Return (height, width) as displayed, from the header alone unless `verify` decodes the pixels too.

    Raises:
        DataError: The file cannot be read; the message does not name the file.
    """
    try:
        if verify:
            height, width, _ = read_rgb8(path).shape
            return height, width
        header = read_header(path)
    except ImageError as error:
        raise DataError(str(error).removeprefix(f"{path}: ")) from error
    return header.height, header.width


def hr_size(pair: Pair, *, verify: bool = False) -> tuple[int, int]:
    """Return (height, width) of the pair's HR image, shrunk where it is to be; see `image_size`."""
    height, width = image_size(pair.hr, verify=verify)
    return shrunk_size((height, width), pair.hr_scale)


def shrunk_size(size: tuple[int, int], factor: float) -> tuple[int, int]:
    """Return (height, width) times the factor, to the nearest pixel and at least 1."""
    height, width = (max(1, round(side * factor)) for side in size)
    return height, width


def check_ratio(hr_size: tuple[int, int], lr_size: tuple[int, int], scale: int) -> None:
    """Refuse an LR size other than that of HR, cut to a multiple of `scale` from the top left, over `scale`.

    Args:
        hr_size: (height, width) in HR pixels.
        lr_size: (height, width) in LR pixels.
        scale: Upscaling factor.

    Raises:
        DataError: With both sizes; the message does not name a file.
    """
    wanted = (hr_size[0] // scale, hr_size[1] // scale)
    if lr_size != wanted:
        raise DataError(
            f"LR is {by(lr_size)}, but HR {by(hr_size)} at scale {scale} needs LR {by(wanted)}"
        )


def by(size: tuple[int, int]) -> str:
    """Return (height, width) as users write it: width x height."""
    return f"{size[1]}x{size[0]}"
