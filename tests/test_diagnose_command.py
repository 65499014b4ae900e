"""``srnet diagnose`` on everything it accepts, and what it writes."""

import json

import pytest
import torch
from PIL import Image

from srnet.attribution import diffusion_index, local_attribution
from srnet.checkpoint import save_checkpoint
from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.network import SRNet

SHAPE = {
    "scale": 2,
    "embed_dim": 16,
    "num_heads": 2,
    "num_blocks": 1,
    "convs_per_block": 1,
    "attention_blocks": (0,),
    "region_size": 16,
    "top_k": 30,
}


def network(**changes):
    torch.manual_seed(0)
    net = SRNet(NetworkConfig(**(SHAPE | changes)))
    for block in net.blocks:
        if block.attention is not None:
            torch.nn.init.normal_(block.attention.out.weight, std=0.1)
    return net


def save(path, **changes):
    save_checkpoint(
        path, network(**changes), metrics={}, data="none", license="none", commit="none"
    )
    return path


@pytest.fixture
def image(photo, tmp_path):
    path = tmp_path / "face.png"
    Image.fromarray(photo("astronaut")[60:140, 180:270]).save(path)  # 90 x 80
    return path


def diagnose(capsys, *words):
    code = main(["diagnose", *map(str, words)])
    return code, *capsys.readouterr()


def test_a_checkpoint(tmp_path, image, capsys):
    model = save(tmp_path / "mine.safetensors")
    code, out, _ = diagnose(capsys, model, "--image", image, "--json", tmp_path / "new" / "d.json")
    assert code == 0
    assert out.startswith("mine (trained) on face.png, 90 x 80 pixels from (0, 0)\n")
    assert "verdict: healthy" in out
    report = json.loads((tmp_path / "new" / "d.json").read_text())
    assert report["healthy"] is True
    (layer,) = report["layers"]
    assert layer["scale"] == pytest.approx(8**-0.5, rel=1e-3)
    assert len(layer["heads"]) == 2
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "d.json"]


def test_a_fault_is_told(tmp_path, image, capsys):
    net = network()
    torch.nn.init.zeros_(net.blocks[0].attention.predictor.weight)
    path = tmp_path / "dead.safetensors"
    save_checkpoint(path, net, metrics={}, data="none", license="none", commit="none")
    code, out, _ = diagnose(capsys, path, "--image", image)
    assert code == 0
    assert "fault: blocks.0.attention: the predictor does not learn" in out
    assert out.endswith("verdict: 1 fault, 0 warnings\n")


def test_a_run_with_and_without_weights(tmp_path, image, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"network": SHAPE}))
    _, out, _ = diagnose(capsys, run, "--image", image)
    assert out.startswith("run (fresh weights)")
    save(run / "last.safetensors")
    _, out, _ = diagnose(capsys, run, "--image", image)
    assert out.startswith("run/last.safetensors (trained)")
    save(run / "best.safetensors")
    _, out, _ = diagnose(capsys, run, "--image", image)
    assert out.startswith("run/best.safetensors (trained)")


def test_a_configuration_and_no_image(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("srnet.commands.diagnose._SIDE", 64)
    path = tmp_path / "c.yaml"
    shape = SHAPE | {"attention_blocks": [0]}
    path.write_text(
        json.dumps(
            {"name": "c", "network": shape, "data": {"train": []}, "trainer": {"max_steps": 1}}
        )
    )
    _, out, _ = diagnose(capsys, path)
    assert out.startswith("c.yaml (fresh weights) on a made-up picture")
    assert "verdict: healthy" in out
    _, other, _ = diagnose(capsys, path, "--seed", "1")
    assert other != out
    assert diagnose(capsys, path)[1] == out


def test_the_window_follows_the_pixel_and_stays_on_the_grid(tmp_path, image, capsys, monkeypatch):
    monkeypatch.setattr("srnet.commands.diagnose._SIDE", 32)
    model = save(tmp_path / "mine.safetensors")
    _, out, _ = diagnose(capsys, model, "--image", image, "--pixel", "60,50")
    assert "32 x 32 pixels from (40, 32)" in out
    _, out, _ = diagnose(capsys, model, "--image", image, "--pixel", "89,79")
    assert "32 x 32 pixels from (56, 48)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.safetensors"], "no such file"),
        (["no-such-model"], "unknown model"),
        (["{tmp}"], "no run: it has neither"),
        (["{tmp}/plain.safetensors"], "no attention layers"),
        (["{tmp}/mine.safetensors", "--pixel", "90,0"], "--pixel 90,0 lies outside its 90 x 80"),
        (["{tmp}/mine.safetensors", "--image", "{tmp}/mine.safetensors"], "mine.safetensors"),
    ],
)
def test_errors_are_one_line(tmp_path, image, capsys, words, message):
    save(tmp_path / "mine.safetensors")
    save(tmp_path / "plain.safetensors", attention_blocks=())
    words = [word.replace("{tmp}", str(tmp_path)) for word in words]
    code, out, err = diagnose(capsys, *words, *([] if "--image" in words else ["--image", image]))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_page_is_one_file(tmp_path, photo, capsys):
    odd = tmp_path / "a<!--b<img src=x>.png"
    Image.fromarray(photo("astronaut")[:50, :60]).save(odd)
    model = save(tmp_path / "mine.safetensors")
    diagnose(capsys, model, "--image", odd, "--html", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside
    assert "src=x>.png" in page
    start = page.index('id="data">') + len('id="data">')
    text = page[start : page.index("</script>", start)]
    assert "<!--" not in text
    data = json.loads(text.replace("<\\!--", "<!--"))
    assert data["image"] == odd.name
    assert data["attribution"]["diffusion"] > 0


def test_attribution_stays_in_the_receptive_field(photo_tensor):
    net = network()
    lr = photo_tensor("astronaut")[:, :, 100:180, 200:280]
    a = local_attribution(net, lr, 41, 37, steps=2)
    assert a.patch == (39, 35, 4)
    rows, columns = torch.nonzero(a.values, as_tuple=True)
    reach = net.receptive_field
    assert rows.min() >= 35 - reach
    assert rows.max() <= 38 + reach
    assert columns.min() >= 39 - reach
    assert columns.max() <= 42 + reach
    assert a.values[33:41, 37:45].sum() > 0.3 * a.values.sum()


def test_attribution_of_a_linear_network_is_its_footprint(photo_tensor):
    """Bicubic enlargement: a patch depends on its own pixels and two around it, and on nothing else."""
    net = network()
    torch.nn.init.zeros_(net.upsampler.weight)
    a = local_attribution(net, photo_tensor("astronaut")[:, :, 100:140, 200:240], 20, 20)
    x, y, side = a.patch
    inside = torch.zeros_like(a.values, dtype=torch.bool)
    inside[y - 2 : y + side + 2, x - 2 : x + side + 2] = True
    assert a.values[~inside].max() < 1e-5 * a.values.max()
    assert (a.values[inside] > 0).float().mean() > 0.9


def test_diffusion_index_against_the_definition():
    values = torch.rand(7, 5, generator=torch.Generator().manual_seed(0))
    flat = values.flatten().double()
    gini = (flat[:, None] - flat[None]).abs().sum() / (2 * len(flat) ** 2 * flat.mean())
    assert diffusion_index(values) == pytest.approx(100 * (1 - float(gini)))
