"""What tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory) -> Path:
    """The sample model (SmolLM2-135M-Instruct, bf16), made once into ``.cache/sample``."""
    from quantlab.conversion.sample import WHEEL, make_sample
    from quantlab.errors import UsageError

    folder = REPOSITORY / ".cache" / "sample"
    if not (folder / "config.json").is_file():
        wheel = REPOSITORY / ".cache" / WHEEL
        try:
            make_sample(folder, wheel=wheel if wheel.is_file() else None)
        except UsageError:  # another test process made it meanwhile
            if not (folder / "config.json").is_file():
                raise
    return folder
