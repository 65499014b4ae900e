"""Upscales image files: plans who becomes what, and takes each from a file on disk to a finished file on disk."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from srnet.atomic import is_partial, remove_leftovers, temporary_file
from srnet.errors import ConfigError, ImageError
from srnet.images import decode, encode, formats
from srnet.images.canvas import Canvas
from srnet.images.fit import fit_format, resample_frames
from srnet.images.formats import OutputFormat
from srnet.images.picture import Animation, Header, Metadata, Picture, Pixels
from srnet.inference import Progress, Upscaler, float_contrast, free_memory

_DEPTHS = {"uint8": "8 bit", "uint16": "16 bit", "float32": "float"}
_ENCODER_BYTES = {"webp": 7, "gif": 13, "avif": 41}  # a pixel, measured; the others are streamed
_EXTREME = 64  # float_contrast from which the network's error is seen
_READ_AHEAD = 4_000_000  # pixels; larger images are decoded only when their turn comes


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size asked for; without any value the network's own enlargement.

    Attributes:
        scale: Factor, 1 to 8.
        width: Columns, pixels; the height follows unless it is given too.
        height: Rows, pixels; the width follows unless it is given too.
        max_side: Longer side, pixels.
        megapixels: Area, millions of pixels.
    """

    scale: float | None = None
    width: int | None = None
    height: int | None = None
    max_side: int | None = None
    megapixels: float | None = None

    def of(self, width: int, height: int, native: int) -> tuple[int, int]:
        """Returns the exact width and height of the result; sides are rounded half up.

        Args:
            width: Columns of the input.
            height: Rows of the input.
            native: Enlargement factor of the network.

        Raises:
            ImageError: If that is no enlargement of 1 to 8 times.
        """
        factor: float = native
        if self.scale is not None:
            factor = self.scale
        elif self.max_side is not None:
            factor = self.max_side / max(width, height)
        elif self.megapixels is not None:
            factor = (self.megapixels * 1e6 / (width * height)) ** 0.5
        elif self.width is not None:
            factor = self.width / width
        elif self.height is not None:
            factor = self.height / height
        sides = [max(int(side * factor + 0.5), 1) for side in (width, height)]
        result = (self.width or sides[0], self.height or sides[1])
        for new, old in zip(result, (width, height), strict=True):
            if not old <= new <= 8 * old:
                raise ImageError(
                    f"{width} x {height} cannot become {result[0]} x {result[1]}; give 1 to 8 times the size"
                )
        return result


@dataclass(frozen=True, kw_only=True)
class Options:
    """How results are named and written.

    Attributes:
        format: Format to write; None takes that of the target's suffix, else the input's.
        size: Size of the result.
        suffix: Put between stem and file suffix; ``{scale}`` is replaced.
        quality: 1 to 100 for JPEG, WebP and AVIF; None takes the format's default.
        lossless: For WebP and AVIF: keep every pixel.
        metadata: Keep what the input carries, or strip all but the colour profile.
        background: RGB, 0 to 255, under transparent pixels where the format has no alpha.
        profile: Keep the input's colour profile, or convert to sRGB.
        animated: Upscale every frame of GIF and WebP files, if such are written.
        compare: Also write a before-and-after picture beside each result.
        existing: What to do where the target exists: refuse, overwrite it, or skip if it is complete and was made of
            the same input with the same settings.
        max_pixels: Largest input that is read, pixels.
    """

    format: OutputFormat | None = None
    size: Size = Size()
    suffix: str = "_x{scale}"
    quality: int | None = None
    lossless: bool = False
    metadata: Literal["keep", "strip"] = "keep"
    background: tuple[int, int, int] = (255, 255, 255)
    profile: Literal["keep", "srgb"] = "keep"
    animated: bool = False
    compare: bool = False
    existing: Literal["refuse", "overwrite", "skip"] = "refuse"
    max_pixels: int = decode.MAX_PIXELS

    def recipe(self, format: OutputFormat, size: tuple[int, int]) -> dict[str, object]:
        """What decides the written file besides the pixels that are computed."""
        return {
            "format": format,
            "size": size,
            "quality": self.quality,
            "lossless": self.lossless,
            "metadata": self.metadata,
            "background": self.background,
            "profile": self.profile,
            "animated": self.animated,
        }

    def read(self, path: Path, format: OutputFormat) -> Picture:
        """Decodes an input as it is needed for a format to be written."""
        return decode.read(
            path,
            self.max_pixels,
            animated=self.animated and format in formats.ANIMATED,
            to_srgb=self.profile == "srgb" or format in formats.NO_PROFILE,
        )


@dataclass(frozen=True)
class Job:
    """One file to read and the file to write."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Result:
    """One finished file.

    Attributes:
        job: What was read and written.
        width: Columns of the result, pixels.
        height: Rows of the result, pixels.
        seconds: Wall time, reading included, writing not.
        notes: What the user should know: frames or metadata left out, depth reduced.
        skipped: The target was there already.
        compared: The before-and-after picture, and the PSNR in dB of the result shrunk back against the input.
    """

    job: Job
    width: int
    height: int
    seconds: float
    notes: tuple[str, ...] = ()
    skipped: bool = False
    compared: tuple[Path, float] | None = None

    @property
    def megapixels_per_second(self) -> float:
        """Pixels of the result, in millions, a second."""
        return self.width * self.height / 1e6 / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Failure:
    """A file that could not be upscaled, and why."""

    job: Job
    error: ImageError


@dataclass(frozen=True)
class Found:
    """The images among what was named.

    Attributes:
        inputs: Files, folders and patterns, as named.
        recursive: Whether folders inside folders were looked into.
        images: Each image, and its path relative to the folder it was found in.
        ignored: Files in folders that are no images, are results of an earlier run, or stand in the output folder.
    """

    inputs: tuple[Path, ...]
    recursive: bool
    images: tuple[tuple[Path, Path], ...]
    ignored: tuple[Path, ...]


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        jobs: In the order in which they are done.
        ignored: Files in folders that are no images, are results of an earlier run, or stand in the output folder.
    """

    jobs: tuple[Job, ...]
    ignored: tuple[Path, ...]


def plan(found: Found, output: Path | None, options: Options, scale: int) -> Plan:
    """Decides which file becomes which, before anything is computed.

    Args:
        found: What `find_images` found, for the same output.
        output: File or folder, in which trees are mirrored; None writes beside each input.
        options: How results are named.
        scale: Enlargement factor of the network.

    Returns:
        One job for each image.

    Raises:
        ConfigError: If there are no images, two inputs would become one file, or a result would replace an input.
    """
    inputs, images, ignored = found.inputs, found.images, list(found.ignored)
    single = len(inputs) == 1 and len(images) == 1 and inputs[0] == images[0][0]
    if output is not None and single and not output.is_dir() and output.suffix:
        formats.format_of(options.format or output.suffix)
        return Plan((Job(images[0][0], output),), ())
    if output is not None and output.suffix.lower() in formats.SUFFIXES and not output.is_dir():
        raise ConfigError(
            f"{output} names one file, but there is a folder or {len(images)} images to put there; give a folder"
        )
    if output is not None and output.exists() and not output.is_dir():
        hint = f", or a name such as {output}.png" if single else ""
        raise ConfigError(f"{output} is no folder; give a folder{hint}")
    targets: dict[Path, Path] = {}
    by_target = defaultdict(list)
    for source, relative in images:
        folder = source.parent if output is None else output / relative.parent
        targets[source] = _target(source, folder, source.stem, options, scale)
        by_target[str(targets[source]).casefold()].append(source)
    for clashing in by_target.values():
        for source in clashing if len(clashing) > 1 else ():
            # a.jpg and a.png keep their suffixes in the names: a_jpg_x4.png, a_png_x4.png
            stem = source.name.replace(".", "_")
            targets[source] = _target(source, targets[source].parent, stem, options, scale)
    results = {target.absolute() for target in targets.values()}
    results |= {compare_path(target) for target in results}
    named = {path.absolute() for path in inputs}
    jobs = []
    for source, target in targets.items():
        if source.absolute() in results:
            if source.absolute() in named:
                raise ConfigError(
                    f"{source} is an input and the result of another; name it alone or use -o or --suffix"
                )
            ignored.append(source)
        else:
            jobs.append(Job(source, target))
    taken: dict[str, Path] = {}
    for job in jobs:
        other = taken.setdefault(str(job.target).casefold(), job.source)
        if other != job.source:
            raise ConfigError(
                f"{other} and {job.source} would both become {job.target}; use -o or --suffix"
            )
    if not jobs:
        inside = [
            path for path in inputs if path.is_dir() and any(p.is_dir() for p in path.iterdir())
        ]
        hint = (
            "; --recursive looks into the folders inside" if inside and not found.recursive else ""
        )
        raise ConfigError(
            f"{', '.join(map(str, inputs))}: no images in it, {len(ignored)} other files{hint}"
        )
    return Plan(tuple(jobs), tuple(ignored))


def upscale_files(
    upscaler: Upscaler,
    jobs: Iterable[Job],
    options: Options | None = None,
    progress: Callable[[Job], Progress | None] | None = None,
) -> Iterator[Result | Failure]:
    """Upscales image files; the next one is read and the last one written while one is computed.

    Args:
        upscaler: What computes.
        jobs: Files to read and to write.
        options: How to write them.
        progress: Gives for a job what is called after each of its tiles.

    Yields:
        What became of each job, in order. A failure leaves no file and does not stop the others.
    """
    options = options or Options()
    waiting: list[Future[Result | Failure]] = []
    swept: set[Path] = set()
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        steps = iter(jobs)
        ahead = [(job, reader.submit(_read, job, options, upscaler, swept)) for job in _take(steps)]
        while ahead:
            job, future = ahead.pop()
            ahead = [
                (next_, reader.submit(_read, next_, options, upscaler, swept))
                for next_ in _take(steps)
            ]
            start = time.perf_counter()
            with ExitStack() as stack:
                outcome: Result | Failure | _Computed
                try:
                    read = future.result()
                    if isinstance(read, _Read):
                        show = progress(job) if progress is not None else None
                        outcome = _compute(upscaler, job, read, options, show, stack, start)
                    else:
                        outcome = read
                except Exception as error:
                    outcome = Failure(job, _as_image_error(job, error))
                for done in waiting:
                    yield done.result()
                waiting = []
                if isinstance(outcome, _Computed):
                    waiting = [writer.submit(_write, outcome, options, stack.pop_all())]
                else:
                    yield outcome
        for done in waiting:
            yield done.result()


def upscale_file(
    upscaler: Upscaler,
    source: Path,
    target: Path,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Result:
    """Upscales one image file.

    Args:
        upscaler: What computes.
        source: Image file.
        target: File to write; appears only when it is complete.
        options: How to write it.
        progress: Called after each tile with the LR pixels done and their total.

    Returns:
        What was written.

    Raises:
        ImageError: If the input cannot be read, the format cannot hold the result, or the target exists.
    """
    (outcome,) = upscale_files(upscaler, [Job(source, target)], options, lambda job: progress)
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


@dataclass(frozen=True)
class _Read:
    """A checked input; decoded already if it is small."""

    format: OutputFormat
    header: Header
    size: tuple[int, int]
    recipe: str
    picture: Picture | None


@dataclass(frozen=True)
class _Computed:
    """A result that waits to be written."""

    result: Result
    format: OutputFormat
    recipe: str
    metadata: Metadata
    animation: Animation | None
    canvas: Canvas


def _read(
    job: Job, options: Options, upscaler: Upscaler, swept: set[Path]
) -> _Read | Result | Failure:
    """Checks everything that can be checked before computing; decodes small images."""
    try:
        format = _format(job.source, job.target, options)
        header = decode.read_header(job.source, options.max_pixels)
        with _about(job.source):
            size = options.size.of(header.width, header.height, upscaler.scale)
            formats.check_target(format, *size)
            if options.lossless and format in ("jpeg", "gif"):
                raise ImageError(
                    f"{format} always loses; --lossless needs --format png, webp, tiff or avif"
                )
        recipe = _recipe(job.source, options.recipe(format, size) | upscaler.recipe)
        if job.target.exists():
            if job.target.samefile(job.source):
                raise ImageError(
                    f"{job.target}: the result would replace its own input; give another -o"
                )
            if options.existing == "skip":
                notes = _finished(job, format, size, recipe)
                if notes is not None and (not options.compare or compare_path(job.target).exists()):
                    return Result(job, *size, 0.0, notes, skipped=True)
        beside = [compare_path(job.target)] if options.compare else []
        for path in [job.target, *beside] if options.existing == "refuse" else []:
            if path.exists():
                raise ImageError(
                    f"{path}: exists already; use --overwrite, --skip-existing or another -o"
                )
        if job.target.parent not in swept:
            _prepare(job.target.parent)
            swept.add(job.target.parent)
        # PNG and TIFF of photographs take about the raw size, and a large result is also kept raw while it is encoded
        need = size[0] * size[1] * 3 * 2
        _check_memory(job, format, size, header.frames if options.animated else 1)
        free = shutil.disk_usage(job.target.parent).free
        if need > free:
            raise ImageError(
                f"{job.target}: needs about {need / 1e6:.0f} MB, the disk has {free / 1e6:.0f} MB free; "
                f"make room or use -o on another disk"
            )
        small = header.width * header.height * header.frames <= _READ_AHEAD
        picture = options.read(job.source, format) if small else None
        return _Read(format, header, size, recipe, picture)
    except Exception as error:
        return Failure(job, _as_image_error(job, error))


def _prepare(folder: Path) -> None:
    """Makes a folder, deletes what killed runs left in it, and proves before computing that it can be written.

    Raises:
        ImageError: If it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with temporary_file(folder, "") as probe:
            probe.touch()
    except (FileExistsError, NotADirectoryError) as error:
        raise ImageError(f"{folder}: no folder can be made there; give another -o") from error
    except OSError as error:
        raise ImageError(f"{folder}: {error.strerror}; give another -o") from error


def _compute(
    upscaler: Upscaler,
    job: Job,
    read: _Read,
    options: Options,
    progress: Progress | None,
    stack: ExitStack,
    start: float,
) -> _Computed:
    picture = read.picture or options.read(job.source, read.format)
    height, width, read_channels = picture.pixels.shape
    scale = upscaler.scale
    canvas = stack.enter_context(Canvas(job.target.parent, width * scale, height * scale))
    with _about(job.source):
        notes = [*picture.notes, *_about_float(picture.pixels, read.format)]
    count = len(picture.animation.delays) if picture.animation is not None else 1
    for index, frame in enumerate(np.split(picture.pixels, count)):
        show = progress and partial(_frame_progress, progress, index, count)
        with _about(job.source):
            for _, strip in upscaler.bands(frame, show):
                strip = fit_format(strip, read.format, options.background)
                canvas.put(strip)
                dtype, channels = strip.dtype, strip.shape[2]
                del strip  # before the next one is made; a strip can be a tenth of the memory
    if options.quality is not None and read.format not in formats.QUALITY:
        notes.append(f"{read.format} has no quality to choose; --quality changes nothing")
    if picture.frames > count:
        notes.append(f"only the first of {picture.frames} frames or pages is upscaled")
    if dtype != picture.pixels.dtype:
        notes.append(
            f"{read.format} cannot hold {_DEPTHS[picture.pixels.dtype.name]}; reduced to {_DEPTHS[dtype.name]}"
        )
    if read.format == "gif" and picture.format != "gif":
        notes.append("gif holds 256 colours and no half transparency; reduced to that")
    if channels < read_channels:
        notes.append(
            f"{read.format} has no alpha; flattened on the background {options.background}"
        )
    if options.metadata == "keep":
        lost = picture.metadata.lost_in(read.format)
        if lost:
            notes.append(f"{read.format} cannot hold {lost}; left out")
    seconds = time.perf_counter() - start
    metadata = picture.metadata if options.metadata == "keep" else picture.metadata.only_icc()
    result = Result(job, *read.size, seconds, tuple(notes))
    return _Computed(result, read.format, read.recipe, metadata, picture.animation, canvas)


@contextmanager
def _about(source: Path) -> Iterator[None]:
    """Names the file in errors of what knows pixels only."""
    try:
        yield
    except ImageError as error:
        raise ImageError(f"{source}: {error}") from error


def _about_float(pixels: Pixels, format: OutputFormat) -> list[str]:
    """What the range of float pixels costs.

    Raises:
        ImageError: If nothing of it is left in a format of integers.
    """
    if pixels.dtype != np.float32:
        return []
    notes = []
    colour = pixels[..., :-1] if pixels.shape[2] in (2, 4) else pixels
    low, high = float(colour.min()), float(colour.max())
    if format != "tiff" and (low < 0 or high > 1):
        if low >= 1 or high <= 0:
            raise ImageError(
                f"float values from {low:g} to {high:g} are all outside 0 to 1, {format} would be blank; "
                f"use --format tiff"
            )
        notes.append(f"float values from {low:g} to {high:g} are cut to 0 to 1; tiff keeps them")
    if float_contrast(colour) > _EXTREME:
        notes.append(
            f"float values reach from {low:g} to {high:g}, far beyond most of them, which costs detail; "
            f"replace those that stand for missing data"
        )
    return notes


def _frame_progress(progress: Progress, index: int, count: int, done: int, total: int) -> None:
    """Progress of one frame as that of all."""
    progress(index * total + done, count * total)


def _write(computed: _Computed, options: Options, stack: ExitStack) -> Result | Failure:
    """Resamples to the announced size and encodes; removes the canvas."""
    result, animation = computed.result, computed.animation
    job, count = result.job, 1 if animation is None else len(animation.delays)
    with stack:
        try:
            encode.write(
                job.target,
                resample_frames(
                    computed.canvas.image(count == 1), count, result.width, result.height
                ),
                computed.format,
                computed.metadata,
                options.quality,
                options.lossless,
                computed.recipe,
                animation,
            )
            if options.compare:
                return _compare(result, options)
        except Exception as error:
            return Failure(job, _as_image_error(job, error))
    return result


def compare_path(target: Path) -> Path:
    """Where the before-and-after picture of a result stands."""
    return target.with_name(f"{target.stem}_compare.png")


def _compare(result: Result, options: Options) -> Result:
    """Writes the before-and-after picture from what is on disk, so that the encoder's loss shows as well."""
    from srnet.compare import LARGEST, compare

    pixels = result.width * result.height
    if pixels > LARGEST:
        note = f"--compare is left out: {pixels / 1e6:.0f} megapixels, over its limit of {LARGEST / 1e6:.0f}"
        return replace(result, notes=(*result.notes, note))
    before, after = (
        fit_format(decode.read(path, 2**40).pixels, "jpeg", options.background)
        for path in (result.job.source, result.job.target)
    )
    picture, psnr = compare(before, after)
    path = compare_path(result.job.target)
    encode.write(path, picture, "png", recipe="comparison")
    return replace(result, compared=(path, psnr))


def _as_image_error(job: Job, error: Exception) -> ImageError:
    """One line about what went wrong with one file; whatever it was, the others are still done."""
    if isinstance(error, ImageError):
        return error
    if isinstance(error, MemoryError):
        return ImageError(f"{job.source}: out of memory; close other programs or upscale it alone")
    if isinstance(error, OSError):
        hint = "; give a shorter -o or --suffix" if error.errno == errno.ENAMETOOLONG else ""
        return ImageError(f"{error.filename or job.source}: {error.strerror or error}{hint}")
    return ImageError(f"{job.source}: unexpected {type(error).__name__} ({error})")


def _take(steps: Iterator[Job]) -> list[Job]:
    """The next step as a list of one, an empty list at the end."""
    return [job for job in [next(steps, None)] if job is not None]


def _check_memory(job: Job, format: OutputFormat, size: tuple[int, int], frames: int) -> None:
    """Refuses before computing what a whole-image encoder could not hold.

    Raises:
        ImageError: If the free memory is too small.
    """
    free = free_memory(torch.device("cpu"))
    need = size[0] * size[1] * frames * _ENCODER_BYTES.get(format, 0)
    if free is not None and need > free:
        raise ImageError(
            f"{job.target}: {format} is encoded in memory, which needs about {need / 1e6:.0f} MB, "
            f"{free / 1e6:.0f} MB are free; use --format png, jpeg or tiff"
        )


def _recipe(source: Path, settings: dict[str, object]) -> str:
    """A name for the content of a file together with settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    with source.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()[:32]


def _finished(
    job: Job, format: OutputFormat, size: tuple[int, int], recipe: str
) -> tuple[str, ...] | None:
    """Notes on why a target need not be made again; None if it must be."""
    match encode.recipe_state(job.target, recipe):
        case "same":
            return ()
        case "none" if job.target.stat().st_mtime >= job.source.stat().st_mtime:
            header = decode.read_header(job.target, 2**40)
            if (header.width, header.height, header.format) == (*size, format):
                return (
                    "its settings are unknown, since srnet did not write it or its metadata is gone",
                )
    return None


def _format(source: Path, target: Path | None, options: Options) -> OutputFormat:
    """The format to write: the one asked for, else the target's suffix, else the input's content."""
    if options.format is not None:
        return options.format
    if target is not None and target.suffix:
        return formats.format_of(target.suffix)
    kind = formats.sniff(source)
    return next((known for known in formats.SUFFIXES.values() if known == kind), "png")


def _target(source: Path, folder: Path, stem: str, options: Options, scale: int) -> Path:
    """``folder/name_x4.png`` for ``name.png``; the file suffix is kept where it fits the format."""
    try:
        format = _format(source, None, options)
    except ImageError:
        format = "png"  # an unreadable file is reported when its turn comes
    fits = formats.SUFFIXES.get(source.suffix.lower()) == format
    suffix = source.suffix if fits else ".jpg" if format == "jpeg" else f".{format}"
    factor = options.size.scale or scale
    return folder / f"{stem}{options.suffix.replace('{scale}', f'{factor:g}')}{suffix}"


def find_images(inputs: Sequence[Path], output: Path | None, recursive: bool) -> Found:
    """Lists the images to upscale.

    Args:
        inputs: Files, folders, and patterns with ``*``.
        output: File or folder that results go to, which is not looked into; None for beside each input.
        recursive: Also take what is in folders inside folders.

    Raises:
        ImageError: If nothing matches a pattern.
    """
    images, ignored = _collect(inputs, output, recursive)
    return Found(tuple(inputs), recursive, tuple(images), tuple(ignored))


def _collect(
    inputs: Sequence[Path], output: Path | None, recursive: bool
) -> tuple[list[tuple[Path, Path]], list[Path]]:
    """Lists (file, path relative to its input) of every image, and the files in folders that are none."""
    found: dict[Path, Path] = {}
    unnamed: set[Path] = set()
    ignored: list[Path] = []
    excluded = output.absolute() if output is not None else None
    for path in inputs:
        if path.is_dir():
            walk = path.rglob("*") if recursive else path.glob("*")
            for file in sorted(walk):
                inside = (
                    excluded is not None
                    and excluded in file.absolute().parents
                    and excluded != path.absolute()
                )
                if not file.is_file():
                    continue
                if inside or is_partial(file) or not _looks_like_an_image(file):
                    ignored.append(file)
                elif file not in found:
                    found[file] = file.relative_to(path)
                    unnamed.add(file)
        elif not path.exists() and any(sign in path.name for sign in "*?["):
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=recursive))
            if not matches:
                raise ImageError(f"{path}: nothing matches this pattern")
            more, other = _collect(matches, output, recursive)
            unnamed |= {file for file, _ in more if file not in found}
            found |= {file: relative for file, relative in more if file not in found}
            ignored += other
        else:
            found.setdefault(path, Path(path.name))
            unnamed.discard(path)
    for file in _results_among(found, unnamed):
        del found[file]
        ignored.append(file)
    return list(found.items()), ignored


def _results_among(found: Iterable[Path], unnamed: Iterable[Path]) -> list[Path]:
    """Results of earlier runs, with whatever settings, that nobody asked for by name and whose input is here too."""
    own = {file for file in unnamed if encode.is_stamped(file)}
    stems = {file.stem for file in found if file not in own}
    return [
        file
        for file in own
        if any(
            file.stem[:end] in stems and not file.stem[end].isalnum()
            for end in range(1, len(file.stem))
        )
    ]


def _looks_like_an_image(file: Path) -> bool:
    """By content, or by suffix, so that broken images are reported rather than ignored."""
    if file.suffix.lower() in formats.SUFFIXES:
        return True
    try:
        return formats.sniff(file) is not None
    except ImageError:
        return False
