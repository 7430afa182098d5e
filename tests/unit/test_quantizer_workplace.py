"""A run's folders: the output appears whole or not at all, and nobody's folder is lost."""

import pytest

from quantlab.errors import ConversionRefused
from quantlab.quantizers.workplace import existing_parent, require_free, workplace


def test_a_published_folder_appears_whole_and_nothing_else_is_left(tmp_path):
    (tmp_path / "out").mkdir()
    with workplace(tmp_path / "out") as place:
        place.staging.mkdir()
        (place.staging / "a").write_text("x")
        assert not any((tmp_path / "out").iterdir())
        place.publish()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "x"
    place.log.unlink()


def test_an_interrupted_run_leaves_nothing_but_its_log(tmp_path):
    def interrupted():
        with workplace(tmp_path / "out") as place:
            place.staging.mkdir()
            places.append(place)
            raise KeyboardInterrupt

    places = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    places[0].log.unlink()


def test_rejected_results_pile_up_and_replace_nothing(tmp_path):
    kept = []
    for _ in range(3):
        with workplace(tmp_path / "out") as place:
            place.staging.mkdir()
            kept.append(place.keep_as_rejected().name)
        place.log.unlink()
    assert kept == ["out.rejected", "out.rejected-2", "out.rejected-3"]


def test_files_and_full_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    require_free(tmp_path / "empty")
    require_free(tmp_path / "new")
    for taken in (tmp_path / "file", tmp_path):
        with pytest.raises(ConversionRefused, match="not an empty folder"):
            require_free(taken)
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
