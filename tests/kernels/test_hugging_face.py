"""`--suite hf:...`: a data set of KernelBench's form, loaded for real from files on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import importers, suites
from kernels.catalog import KernelError
from kernels.suites import hugging_face

CODE = "class Model: ...\ndef get_inputs(): ...\n"
Rows = list[tuple[int, str, str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `datasets` loads; what it makes of it stays in the test's own folder."""
    pytest.importorskip("datasets")
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "hub" / "Small"
    (folder / "data").mkdir(parents=True)
    return folder


def add(folder: Path, split: str, rows: Rows, columns: tuple[str, ...] = ("problem_id", "name", "code")) -> None:
    from datasets import Dataset

    table = {column: [row[at] for row in rows] for at, column in enumerate(columns)}
    Dataset.from_dict(table).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


def test_splits_become_levels_and_rows_files(hub: Path, tmp_path: Path):
    add(hub, "level_1", [(23, "23_Softmax", CODE), (4, "4_Matrix_vector.py", CODE + "# 4"), (100, "HingeLoss", CODE)])
    add(hub, "level_2", [(1, "1_Conv2d/../../ReLU", CODE)])
    into = tmp_path / "runs" / "c" / "suite"
    made = hugging_face.fetch(f"hf:{hub}", into)
    files = suites.problems(str(made))
    assert [str(path.relative_to(into)) for path in files] == [
        "level1/4_Matrix_vector.py", "level1/23_Softmax.py", "level1/100_HingeLoss.py", "level2/1_Conv2d_.._.._ReLU.py",
    ]  # fmt: skip
    assert files[0].read_text() == CODE + "# 4"
    assert [importers.title(path).number for path in files] == [4, 23, 100, 1]
    assert [path.name for path in into.parent.iterdir()] == ["suite"]
    (hub / "data" / "level_1-00000-of-00001.parquet").unlink()
    assert hugging_face.fetch(f"hf:{hub}", into) == into  # what is there is not fetched again


@pytest.mark.parametrize(
    ("split", "rows", "columns", "said"),
    [
        ("train", [(1, "A", CODE)], ("problem_id", "name", "code"), "has no split level_1"),
        ("level_1", [(1, "A", CODE)], ("id", "name", "code"), "has no column problem_id"),
        ("level_1", [(0, "A", CODE)], ("problem_id", "name", "code"), "row 0 of level1 is no problem"),
    ],
)
def test_what_is_no_data_set_of_problems_is_one_sentence_and_leaves_nothing(hub, split, rows, columns, said, tmp_path):
    add(hub, split, rows, columns)
    with pytest.raises(KernelError, match=said):
        hugging_face.fetch(f"hf:{hub}", tmp_path / "c" / "suite")
    assert list((tmp_path / "c").iterdir()) == []


def test_what_cannot_be_loaded_is_one_sentence(hub: Path, tmp_path: Path):
    with pytest.raises(KernelError, match=r"hf:.*nowhere cannot be loaded: ") as found:
        hugging_face.fetch(f"hf:{tmp_path}/nowhere", tmp_path / "c" / "suite")
    assert "\n" not in str(found.value)


def test_names_of_folders():
    assert hugging_face.name("hf:ScalingIntelligence/KernelBench") == "KernelBench"
    assert hugging_face.name("hf:ScalingIntelligence/KernelBench@v0.1/x") == "x"
    assert hugging_face.name("hf:/data/my suite/") == "my-suite"
    assert hugging_face.is_hugging_face("hf:x") and not hugging_face.is_hugging_face("starter")


def test_one_file_is_a_suite_of_one(tmp_path: Path):
    (tmp_path / "mine.py").write_text(CODE)
    assert suites.problems(str(tmp_path / "mine.py")) == [(tmp_path / "mine.py").resolve()]


def test_a_flat_folder_of_modules_is_a_suite_and_its_helpers_are_no_problems(tmp_path):
    module = "import torch\n\n\nclass Model(torch.nn.Module): ...\n\n\ndef get_inputs(): ...\n"
    (tmp_path / "gate.py").write_text(module)
    (tmp_path / "alias.py").write_text("from gate import Model\n\n\ndef get_inputs(): ...\n")
    (tmp_path / "layers.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "broken.py").write_text("class Model(\n")
    assert [path.name for path in suites.problems(str(tmp_path))] == ["alias.py", "broken.py", "gate.py"]
    with pytest.raises(KernelError, match="no problem files of its own"):
        suites.problems(str(tmp_path), (1,))
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_Gate.py").write_text(module)
    (tmp_path / "level1" / "layers.py").write_text("def half(x):\n    return x / 2\n")
    assert [path.name for path in suites.problems(str(tmp_path))] == ["1_Gate.py"]
