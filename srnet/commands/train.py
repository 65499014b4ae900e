"""``srnet train CONFIG [key.path=value ...]``."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "config", metavar="CONFIG", help="YAML file of the run, e.g. configs/smoke.yaml"
    )
    parser.add_argument(
        "overrides",
        nargs=argparse.REMAINDER,  # also takes --key.path=value, which is what a sweep passes
        metavar="key.path=value",
        help="change single values, e.g. trainer.max_steps=1000; -- before the key is accepted",
    )


def run(args: argparse.Namespace) -> int:
    """Trains; the saved state in the run's folder is resumed if there is one.

    Returns:
        0 when the run reached max_steps, 130 when a signal stopped it.
    """
    from srnet.config import load_config

    # before torch is imported: a wrong key is told at once
    config = load_config(args.config, tuple(args.overrides))

    from srnet.training.run import train

    result = train(config)
    if result.rank:
        return 0
    if result.stopped_by is not None:
        sys.stderr.write(f"stopped at step {result.step}; run the same command again to go on\n")
        return 130
    for name, mean in result.metrics.items():
        print(f"{name}: PSNR-Y {mean['psnr_y']:.2f} dB, SSIM-Y {mean['ssim_y']:.4f}")
    print(result.folder)
    return 0
