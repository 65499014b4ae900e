"""Every shipped configuration loads; what is wrong is named."""

import json
import re
from pathlib import Path

import pytest

from srnet.checkpoint import read_header
from srnet.config import NetworkConfig, load_config, network_config_from_dict
from srnet.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
SMOKE = Path(__file__).parents[1] / "configs" / "smoke.yaml"
LIMITS = {"tiny": 140_000, "small": 456_000, "base": 800_000, "large": 13_000_000}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configuration_loads_and_keeps_its_size(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    size, _, rest = path.stem.partition("_")
    if rest:
        from srnet.network import SRNet

        assert rest.startswith(f"x{config.network.scale}")
        parameters = sum(p.numel() for p in SRNet(config.network).parameters())
        assert LIMITS[size] * 0.85 < parameters <= LIMITS[size]


def test_sizes_and_scales_are_complete() -> None:
    names = {p.stem for p in CONFIGS}
    assert {f"{size}_x{scale}" for size in LIMITS for scale in (2, 3, 4)} <= names


def test_every_shipped_checkpoint_has_the_settings_of_its_configuration() -> None:
    seen = set()
    for path in CONFIGS:
        name = re.search(r"checkpoints/(srnet-[\w-]+)", path.read_text())
        if name is None:
            continue
        config = load_config(path)
        card = read_header(CHECKPOINTS / f"{name[1]}.safetensors").metadata
        assert config.network == network_config_from_dict(json.loads(card["config"]))
        assert config.data.description == card["data"]
        assert config.data.weights_license == card["license"]
        assert (config.data.degradation is not None) == (card["kind"] == "photo")
        seen.add(f"{name[1]}.safetensors")
    assert seen == {path.name for path in CHECKPOINTS.glob("*.safetensors")}


def test_overrides_replace_single_values() -> None:
    words = (
        "optim.learning_rate=1e-4",
        "--trainer.max_steps=7",
        "data.train=[a, b]",
        "init_from=null",
    )
    config = load_config(SMOKE, words)
    assert config.optim.learning_rate == 1e-4  # YAML 1.1 reads 1e-4 as text
    assert config.trainer.max_steps == 7
    assert config.data.train == ("a", "b")
    assert config.network.scale == 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("network.scal=2", "network.scal is no setting; did you mean network.scale?"),
        ("train.max_steps=2", "train is no setting; did you mean trainer?"),
        ("data.degradation.blurs=[1, 2]", "did you mean data.degradation.blur?"),
        ("data.degradation.clean=2", "data.degradation.clean is 2.0; use 0 to 1"),
        ("qqq=1", "qqq is no setting"),
        ("network.scale=5", "network.scale: Input should be 2, 3 or 4, got 5"),
        ("network.num_heads=7", "embed_dim 24 is not divisible by num_heads 7"),
        ("network.head_dim=0", "head_dim is 0; use at least 1"),
        ("network.region_size=25", "region_size 25 cannot be centred on a group of 8"),
        ("network.attention_blocks=[3]", "block 3, but the blocks are 0 to 2"),
        ("optim.learning_rate=0", "learning_rate is 0.0"),
        ("optim.learning_rate=.inf", "learning_rate is inf"),
        ("optim.warmup_steps=-3", "warmup_steps is -3"),
        ("optim.gradient_clip=-1", "gradient_clip is -1.0"),
        ("optim.loss_limit=-1", "loss_limit is -1.0"),
        ("optim.loss_limit=none", "optim.loss_limit: "),
        ("optim.betas=[0.9, 2]", "betas holds 2.0"),
        ("optim.momentum=1", "momentum is 1.0"),
        ("network.predictor_dim=0", "predictor_dim is 0"),
        ("data.batch_size=0", "batch_size is 0"),
        ("data.patch_size=0", "patch_size is 0"),
        ("trainer.max_steps=many", "trainer.max_steps"),
        ("trainer=5", "trainer"),
        ("name.x=5", "name holds a value"),
        ("speed", "key.path=value"),
        ("a=[", "not valid YAML"),
    ],
)
def test_wrong_override_is_named_in_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(SMOKE, (word,))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    for name, content in (
        ("list.yaml", b"[1, 2]"),
        ("broken.yaml", b"a: [1"),
        ("binary.yaml", b"\xff\xfe\x00\x01"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=name) as caught:
            load_config(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file"):
        load_config(tmp_path / "missing.yaml")


def test_network_config_from_plain_values() -> None:
    assert network_config_from_dict({"scale": 3, "attention_blocks": [0]}) == NetworkConfig(
        scale=3, attention_blocks=(0,)
    )
    with pytest.raises(ConfigError, match="size is no setting"):
        network_config_from_dict({"scale": 3, "size": 1})


@pytest.mark.parametrize(("word", "value"), [("on", "on"), ("off", "off"), ("auto", "auto")])
def test_on_and_off_are_words(word: str, value: str, tmp_path: Path) -> None:
    """YAML 1.1 reads them as true and false."""
    assert load_config(SMOKE, (f"trainer.channels_last={word}",)).trainer.channels_last == value
    path = tmp_path / "run.yaml"
    path.write_text(SMOKE.read_text() + f"  channels_last: {word}\nlogger: {{wandb: off}}\n")
    config = load_config(path, ("data.skip_small=true", "trainer.compile=false"))
    assert (config.trainer.channels_last, config.logger.wandb) == (value, "off")
    assert (config.data.skip_small, config.trainer.compile) == (True, False)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("name=", "name is "),
        ("name=''", "name is ''"),
        ("name=../x", "one folder below output_dir"),
        ("name=..", "one folder below output_dir"),
        ("name=a/b", "one folder below output_dir"),
        ("name='a\\b'", "one folder below output_dir"),
        ("network.attention_blocks=[1, 1]", "names a block twice; use [1]"),
        ("trainer.seed=-1", "trainer.seed is -1"),
        ("trainer.devices=0", "trainer.devices is 0"),
        ("data.hr_scales=[]", "data.hr_scales is []; use different factors above 0 and up to 1"),
        ("data.hr_scales=[1, 1.5]", "data.hr_scales is [1.0, 1.5]"),
        ("data.hr_scales=[0.5, 0.5]", "data.hr_scales is [0.5, 0.5]"),
        ("data.hr_scales=[0]", "data.hr_scales is [0.0]"),
        ("data.hr_scales=[.nan]", "data.hr_scales is [nan]"),
    ],
)
def test_settings_that_would_go_wrong_later_are_refused(word: str, message: str) -> None:
    if word == "name=":
        message = "name: Input should be a valid string"
    with pytest.raises(ConfigError) as error:
        load_config(SMOKE, (word,))
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
