"""A run that takes a second, on photographs."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, photo_folders) -> Path:
    return photo_folders(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config_file(folders: Path, tmp_path: Path, tiny_run) -> Path:
    return tiny_run(
        tmp_path / "run.yaml",
        data={
            "train": [str(folders / "train")],
            "validation": {"cat": str(folders / "validation")},
            "cache_dir": str(folders / "cache"),
        },
        optim={"decay_steps": 3},
        trainer={"max_steps": 6, "log_every_n_steps": 1},
        output_dir=str(tmp_path / "runs"),
    )
