"""The page of ``srnet diagnose --html`` in a real browser: it draws, and it reacts to clicks."""

import base64
import json
import re
import shutil
import subprocess

import pytest
import torch
from PIL import Image

from srnet.checkpoint import save_checkpoint
from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.network import SRNet

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
# Runs after the page's own script: notes what the page shows, acts as a reader would, and notes it again.
PROBE = """
<script>
window.addEventListener("load", () => {
  const shown = () => ({
    chosen: document.body.dataset.chosen,
    where: document.getElementById("where").textContent,
    verdict: document.getElementById("verdict").textContent,
    colours: Object.fromEntries([...document.querySelectorAll("canvas")].map((canvas, i) => {
      const pixels = new Uint32Array(
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
      return [canvas.id || `head ${i}`, new Set(pixels).size];
    })),
    heads: document.querySelectorAll("#headNumbers tr").length - 1,
    plots: document.querySelectorAll("#histograms path").length,
    picture: document.getElementById("photo").toDataURL(),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  });
  const states = [shown()];
  const photo = document.getElementById("photo"), box = photo.getBoundingClientRect();
  photo.dispatchEvent(new MouseEvent("click", {
    bubbles: true, clientX: box.left + box.width * 20.5 / WIDTH, clientY: box.top + box.height * 30.5 / HEIGHT,
  }));
  states.push(shown());
  photo.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  states.push(shown());
  document.querySelectorAll("#headButtons button")[1].click();
  states.push(shown());
  document.querySelectorAll("#layers button")[0].click();
  states.push(shown());
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(states))));
  document.body.append(result);
});
window.addEventListener("error", (event) => { document.title = "error: " + event.message; });
</script>
"""


@pytest.fixture(scope="module")
def states(photo, tmp_path_factory):
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome on the PATH")
    folder = tmp_path_factory.mktemp("page")
    torch.manual_seed(0)
    net = SRNet(
        NetworkConfig(
            scale=2,
            embed_dim=16,
            num_heads=2,
            num_blocks=2,
            convs_per_block=1,
            attention_blocks=(0, 1),
            region_size=16,
            top_k=30,
        )
    )
    save_checkpoint(
        folder / "m.safetensors", net, metrics={}, data="none", license="none", commit="none"
    )
    Image.fromarray(photo("astronaut")[60:140, 180:270]).save(folder / "face.png")
    page = folder / "r.html"
    assert (
        main(
            [
                "diagnose",
                str(folder / "m.safetensors"),
                "--image",
                str(folder / "face.png"),
                "--html",
                str(page),
            ]
        )
        == 0
    )
    text = page.read_text(encoding="utf-8")
    probe = PROBE.replace("WIDTH", "90").replace("HEIGHT", "80")
    page.write_text(text.replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="result">([^<]*)</pre>', done.stdout)
    assert found, re.search("<title>.*</title>", done.stdout)
    return json.loads(base64.b64decode(found.group(1)))


def test_it_draws_every_picture(states):
    first = states[0]
    assert first["verdict"] == "2 warnings"  # the fresh output projections, called trained
    assert first["chosen"] == "45,40"
    assert first["heads"] == 2
    assert first["plots"] == 4 * 2
    assert not first["wide"]
    assert len(first["colours"]) == 5  # photo, two heads, selected, attribution
    assert all(count > 10 for count in first["colours"].values()), first["colours"]


def test_it_reacts_to_a_click(states):
    before, after = states[:2]
    assert after["chosen"] == "20,30"
    assert after["where"].startswith("Pixel 20, 30 of the image.")
    assert after["picture"] != before["picture"]


def test_it_reacts_to_keys_heads_and_layers(states):
    _, clicked, moved, head, layer = states
    assert moved["chosen"] == "28,30"
    assert "(head 0)" in head["where"]
    assert "(mean over heads)" in layer["where"]
    assert len({s["picture"] for s in (clicked, moved, head, layer)}) == 4
