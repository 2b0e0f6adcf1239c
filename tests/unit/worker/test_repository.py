"""Which folders are models, which versions count, which links are followed, and when a copy is complete."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_worker.repository import Repository, Settling, VersionFiles, is_model_name, is_version


def touch(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_odd_version_names_are_ignored_with_a_reason_each(tmp_path: Path) -> None:
    for name in ("1", "01", "007", "2.5", "-3", ".tmp", "latest", "1 ", "0"):
        touch(tmp_path / "m" / name / "model.onnx")
    touch(tmp_path / "m" / "4")
    (tmp_path / "m" / "5").mkdir()
    model = Repository(tmp_path).scan()["m"]
    assert list(model.versions) == ["1"]
    assert set(model.ignored) == {"01", "007", "2.5", "-3", ".tmp", "latest", "1 ", "0", "4", "5"}
    assert all(model.ignored.values())


def test_the_three_layouts_are_found(tmp_path: Path) -> None:
    touch(tmp_path / "tree" / "3" / "model.onnx")
    touch(tmp_path / "flat" / "model.onnx")
    touch(tmp_path / "bare.onnx")
    found = Repository(tmp_path).scan()
    assert {name: list(one.versions) for name, one in found.items()} == {"tree": ["3"], "flat": ["1"], "bare": ["1"]}


def test_version_folders_win_over_a_file_beside_them_and_a_folder_over_a_bare_file(tmp_path: Path) -> None:
    touch(tmp_path / "m" / "2" / "model.onnx")
    touch(tmp_path / "m" / "model.onnx")
    touch(tmp_path / "m.onnx")
    repository = Repository(tmp_path)
    found = repository.scan()
    assert list(found["m"].versions) == ["2"]
    assert "model.onnx" in found["m"].ignored
    assert "m.onnx" in repository.ignored


def test_a_link_into_an_allowed_root_is_followed(tmp_path: Path) -> None:
    blob = touch(tmp_path / "blobs" / "abc")
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.onnx").symlink_to(blob)
    refused = Repository(tmp_path / "models").find("m")
    assert refused is not None
    assert refused.versions["1"].problem.startswith("model.onnx leads outside the allowed roots; allow")
    allowed = Repository(tmp_path / "models", allowed_roots=[tmp_path / "blobs"]).find("m")
    assert allowed is not None
    assert not allowed.versions["1"].problem
    assert allowed.versions["1"].files[0].linked_to == blob


def test_a_dangling_link_is_a_problem_that_names_no_path(tmp_path: Path) -> None:
    touch(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "1" / "model.onnx_data").symlink_to(tmp_path / "gone")
    model = Repository(tmp_path).find("m")
    assert model is not None
    assert model.versions["1"].problem == "model.onnx_data is a link that leads nowhere"


@pytest.mark.parametrize(
    "name", ["a" * 251, "", ".", "..", "../x", "a/b", ".hidden", "a\0b", "a\nb", " a", "x" * 300, "a\\b"]
)
def test_names_from_callers_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    assert not is_model_name(name)
    assert Repository(tmp_path).find(name) is None


@pytest.mark.parametrize(
    ("name", "right"), [("1", True), ("20", True), ("0", False), ("01", False), ("²", False), ("1" * 30, False)]
)
def test_a_version_is_a_canonical_decimal_number(name: str, *, right: bool) -> None:
    assert is_version(name) is right


def test_the_fingerprint_changes_with_a_file(tmp_path: Path) -> None:
    path = touch(tmp_path / "m" / "1" / "model.onnx")
    before = _version(tmp_path).fingerprint
    assert _version(tmp_path).fingerprint == before
    path.write_bytes(b"xy")
    assert _version(tmp_path).fingerprint != before


def test_young_files_settle_when_two_looks_agree(tmp_path: Path) -> None:
    path = touch(tmp_path / "m" / "1" / "model.onnx")
    settling, wall = Settling(), time.time()
    assert not settling.settled(_version(tmp_path), wall=wall, now=10.0)
    assert not settling.settled(_version(tmp_path), wall=wall, now=10.1)
    path.write_bytes(b"grown")
    assert not settling.settled(_version(tmp_path), wall=wall, now=11.0)
    assert settling.settled(_version(tmp_path), wall=wall, now=11.5)


def test_old_files_a_marker_and_a_partial_name_each_decide_at_once(tmp_path: Path) -> None:
    touch(tmp_path / "m" / "1" / "model.onnx")
    files = _version(tmp_path)
    assert Settling().settled(files, wall=time.time() + 60, now=0.0)
    touch(tmp_path / "m" / "1" / "model.onnx_data.part")
    assert not Settling().settled(_version(tmp_path), wall=time.time() + 60, now=0.0)
    (tmp_path / "m" / "1" / "model.onnx_data.part").unlink()
    touch(tmp_path / "m" / "1" / ".complete", b"")
    assert Settling().settled(_version(tmp_path), wall=time.time(), now=0.0)


def _version(root: Path) -> VersionFiles:
    model = Repository(root).find("m")
    assert model is not None
    return model.versions["1"]


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "good" / "1" / "model.onnx")
    touch(tmp_path / "shut" / "1" / "model.onnx")
    read = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "shut":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = Repository(tmp_path).scan()
    assert list(found["good"].versions) == ["1"]
    assert found["shut"].ignored == {"the folder": "can't be read: Permission denied"}
