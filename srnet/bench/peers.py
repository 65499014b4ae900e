"""Networks of other projects, as spandrel builds them, with the scores that their authors publish."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Peer:
    """Another project's network in the shape that its authors published for x4.

    Attributes:
        name: As in its paper.
        build: Makes it, with random weights.
        psnr: Published PSNR-Y, dB, x4.
    """

    name: str
    build: Callable[[], nn.Module]
    psnr: dict[str, float]


def peers() -> list[Peer]:
    """Networks of other projects, as spandrel builds them.

    PSNR is that of each paper's or repository's own table; that of SPAN-28 was measured with its public weights.

    Raises:
        ImportError: spandrel is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of spandrel's dependencies
        from spandrel.architectures import ATD, CRAFT, DAT, HAT, SAFMN, SPAN, OmniSR, SwinIR

    def span(channels: int) -> nn.Module:
        network: nn.Module = SPAN.SPAN(
            num_in_ch=3, num_out_ch=3, feature_channels=channels, upscale=4
        )
        # It merges the branches of its convolutions anew in each call: once is enough, as in its authors' speed test.
        module: Any
        for module in network.eval().modules():
            if hasattr(module, "update_params"):
                module.update_params()
                module.update_params = lambda: None
                del module.sk, module.conv
        return network

    four, six = [6] * 4, [6] * 6
    direct = {"upscale": 4, "upsampler": "pixelshuffledirect"}
    return [
        Peer("SPAN-28", lambda: span(28), {"Set5": 31.74, "Set14": 28.40}),
        Peer("SPAN-48", lambda: span(48), {"Set14": 28.66}),
        Peer(
            "SAFMN",
            lambda: SAFMN.SAFMN(dim=36, n_blocks=8, ffn_scale=2.0, upscaling_factor=4),
            {"Set5": 32.18, "Set14": 28.60, "Urban100": 25.97},
        ),
        Peer(
            "OmniSR",
            lambda: OmniSR.OmniSR(num_feat=64, block_num=1, res_num=5, window_size=8, up_scale=4),
            {"Set5": 32.49, "Set14": 28.78, "Urban100": 26.64},
        ),
        Peer(
            "SwinIR-light",
            lambda: SwinIR.SwinIR(
                img_size=64,
                embed_dim=60,
                depths=four,
                num_heads=four,
                window_size=8,
                mlp_ratio=2,
                **direct,
            ),
            {"Set5": 32.44, "Set14": 28.77, "Urban100": 26.47},
        ),
        Peer(
            "CRAFT",
            lambda: CRAFT.CRAFT(embed_dim=48, depths=[2] * 4, num_heads=four, upscale=4),
            {"Set5": 32.52, "Set14": 28.85, "Urban100": 26.56},
        ),
        Peer(
            "DAT-light",
            lambda: DAT.DAT(
                img_size=64,
                embed_dim=60,
                split_size=[8, 32],
                depth=[18],
                num_heads=[6],
                expansion_factor=2,
                resi_connection="3conv",
                **direct,
            ),
            {"Set5": 32.57, "Set14": 28.87, "Urban100": 26.64},
        ),
        Peer(
            "ATD-light",
            lambda: ATD.ATD(
                embed_dim=48,
                depths=four,
                num_heads=[4] * 4,
                window_size=16,
                category_size=128,
                num_tokens=64,
                reducted_dim=8,
                convffn_kernel_size=7,
                mlp_ratio=1,
                **direct,
            ),
            {"Set5": 32.63, "Set14": 28.89, "Urban100": 26.97},
        ),
        Peer(
            "HAT-S",
            lambda: HAT.HAT(
                img_size=64,
                embed_dim=144,
                depths=six,
                num_heads=six,
                window_size=16,
                compress_ratio=24,
                squeeze_factor=24,
                mlp_ratio=2,
                upscale=4,
            ),
            {},
        ),
    ]


def built(found: Sequence[Peer]) -> list[tuple[Peer, nn.Module]]:
    """Builds peers, without the warnings of their code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other projects' code
        return [(peer, peer.build()) for peer in found]
