"""What tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory) -> Path:
    """The sample model (SmolLM2-135M-Instruct, bf16), made once into ``.cache/sample``."""
    from filelock import FileLock

    from quantlab.conversion.sample import WHEEL, make_sample

    folder = REPOSITORY / ".cache" / "sample"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "sample.lock"):  # test processes run side by side; one of them makes it
        if not (folder / "config.json").is_file():
            wheel = folder.parent / WHEEL
            make_sample(folder, wheel=wheel if wheel.is_file() else None)
    return folder
