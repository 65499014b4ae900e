"""The study of the predictor: its figures are those of the layers, its document keeps what others wrote."""

import numpy as np
import predictor_study as script
import pytest
import torch
from PIL import Image

from srnet.config import NetworkConfig
from srnet.diagnostics import examine
from srnet.metrics import psnr_y
from srnet.network import SRNet
from srnet.resize import downscale


def test_rows_are_means_over_photographs(tmp_path, photo):
    for i, place in enumerate((0, 120)):
        crop = photo("astronaut")[place : place + 51, 100:160]
        Image.fromarray(np.ascontiguousarray(crop)).save(tmp_path / f"{i}.png")
    torch.manual_seed(0)
    network = SRNet(
        NetworkConfig(
            scale=2,
            embed_dim=8,
            num_heads=1,
            num_blocks=1,
            convs_per_block=1,
            attention_blocks=(0,),
            region_size=16,
            top_k=20,
        )
    )
    torch.nn.init.normal_(network.blocks[0].attention.out.weight, std=0.2)
    paths = script.photographs(tmp_path)
    assert [t.shape for t in script.pair_of(paths[0], 2, 100)] == [(1, 3, 25, 30), (1, 3, 50, 60)]
    pairs = [script.pair_of(path, 2, 24) for path in paths]
    lr, hr = pairs[0]
    torch.testing.assert_close(
        downscale(hr, 2)[..., 4:-4, 4:-4], lr[..., 4:-4, 4:-4], atol=5e-3, rtol=0
    )
    ((layers, loss),) = script.study(network, pairs)
    mass = [examine(network, lr)[0].statistics.mass.selected for lr, _ in pairs]
    assert mass[0] != mass[1]
    cells = script.row("a", layers, loss)
    assert cells[:3] == ("a", "blocks.0", "20 of 256")
    assert float(cells[3]) == pytest.approx(100 * sum(mass) / 2, abs=0.051)
    assert float(cells[4]) < float(cells[7]) < 100  # random, best

    def psnr():
        return sum(psnr_y(network(lr), hr, 2).item() for lr, hr in pairs) / 2

    with torch.no_grad():
        before = psnr()
        torch.nn.init.zeros_(network.blocks[0].attention.out.weight)  # the bias is zero already
        assert loss == pytest.approx(before - psnr(), abs=1e-4)
    assert abs(loss) > 0.01


def test_the_rest_of_the_document_stays(tmp_path):
    path = tmp_path / "a.md"
    script.write_section(path, "one\n")
    first = path.read_text(encoding="utf-8")
    assert first.startswith("# Architecture\n")
    path.write_text(first + "\n## Written by hand\n", encoding="utf-8")
    script.write_section(path, "two\n")
    text = path.read_text(encoding="utf-8")
    assert "one" not in text
    assert text == first.replace("one", "two") + "\n## Written by hand\n"
