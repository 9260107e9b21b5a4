"""Building the engine goes on where it stopped, takes over what is there, and says what to set where it can't; nothing is installed."""

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT, load_by_path

torch_source = load_by_path("torch_source", ROOT / "tools/engine/torch_source.py")
build = load_by_path("engine_build", ROOT / "tools/engine/build.py")


class Recipe:
    """Three steps that only note that they ran; the second can be made to fail."""

    def __init__(self, place: Any) -> None:
        self.place = place
        self.ran: list[str] = []
        self.made: set[str] = set()
        self.inputs = {"first": "1", "second": "1", "check": "1"}
        self.fails = ""

    def steps(self, place: Any) -> list[Any]:
        assert place is self.place
        return [build.Step(name, self.inputs[name], self._holds(name), self._run(name), again=name == "check") for name in self.inputs]

    def _holds(self, name: str) -> Callable[[], bool]:
        return lambda: name in self.made

    def _run(self, name: str) -> Callable[[], None]:
        def run() -> None:
            if name == self.fails:
                raise build.BuildError(f"{name} broke")
            self.ran.append(name)
            self.made.add(name)

        return run

    def build(self) -> str:
        """Build once; the names of the steps that ran."""
        self.ran.clear()
        self.said: list[str] = []
        build.build(self.place, self.said.append)
        return " ".join(self.ran)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A folder in which what costs nothing to look at is there."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    for folder, positions in (("model", 2048), ("model-32k", 32_768)):
        model = tmp_path / folder
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"max_position_embeddings": positions, "num_hidden_layers": 2}))
        (model / "tokenizer_config.json").write_text(json.dumps({"model_max_length": positions}))
        for name in ("model.safetensors", "tokenizer.json"):
            (model / name).touch()
    return build.Place(tmp_path)


@pytest.fixture
def recipe(place: Any, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    made = Recipe(place)
    monkeypatch.setattr(build, "steps", made.steps)
    return made


def test_a_finished_build_is_only_looked_at(recipe: Recipe) -> None:
    assert recipe.build() == "first second check"
    assert len(recipe.said[-1].splitlines()) == 1
    assert recipe.build() == ""
    assert recipe.said == [f"engine: {recipe.place.root} is there\n"]


def test_a_build_that_broke_goes_on_where_it_stopped(recipe: Recipe) -> None:
    recipe.fails = "second"
    with pytest.raises(build.BuildError, match="second broke"):
        recipe.build()
    recipe.fails = ""
    assert recipe.build() == "second check"


def test_what_was_made_by_hand_is_taken_over_and_checked(recipe: Recipe) -> None:
    recipe.made = {"first", "second"}
    assert recipe.build() == "check"
    assert recipe.build() == ""


def test_other_inputs_run_a_step_again_and_the_check_after_it(recipe: Recipe) -> None:
    recipe.build()
    recipe.inputs["second"] = "2"
    assert recipe.build() == "second check"


@pytest.mark.parametrize("model", ["model", "model-32k"])
def test_a_result_that_went_away_is_made_again(recipe: Recipe, model: str) -> None:
    recipe.build()
    (recipe.place.root / model / "tokenizer.json").unlink()
    recipe.made.discard("first")
    assert recipe.build() == "first check"


def test_the_long_model_is_the_tiny_one_with_more_positions(place: Any) -> None:
    (place.model / "model.safetensors").write_bytes(b"weights")
    (place.long_model / "left.over").touch()
    build.make_long_model(place)
    assert sorted(path.name for path in place.long_model.iterdir()) == sorted(path.name for path in place.model.iterdir())
    assert (place.long_model / "model.safetensors").read_bytes() == b"weights"
    config, tokenizer = (json.loads((place.long_model / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
    assert config == {"max_position_embeddings": 32_768, "num_hidden_layers": 2}
    assert tokenizer == {"model_max_length": 32_768}
    assert build.model_complete(place.long_model, 32_768)
    assert not build.model_complete(place.long_model, 2048)


def test_each_step_says_one_line_with_its_seconds(recipe: Recipe) -> None:
    recipe.build()
    lines = "".join(recipe.said).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("engine [1/3] first: done, ")
    assert all(line.endswith(" s") for line in lines)


def test_a_second_build_waits_for_the_first(place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    inside = threading.Event()

    def second() -> None:
        with build.locked(place):
            inside.set()

    with build.locked(place):
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.3)
    assert inside.wait(10)
    thread.join()
    assert "another build runs" in capsys.readouterr().out


def fake_python(folder: Path, answer: str) -> str:
    """A program that stands in for the environment's Python: a shell script that sees the arguments of `-m pip install`."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def report(*files: Path) -> str:
    return json.dumps({"install": [{"download_info": {"url": file.as_uri()}} for file in files]})


def test_the_cpu_build_is_taken_where_pip_finds_it_and_its_size_named(tmp_path: Path) -> None:
    file = tmp_path / "torch 1.whl"
    file.write_bytes(b"x" * 3_000_000)
    python = fake_python(tmp_path, f"echo '{report(file, file)}'")
    source = torch_source.choose_torch(python, "2.13.0", "", {})
    assert source.arguments == ("torch==2.13.0+cpu",)
    assert source.describe() == "torch==2.13.0+cpu, 6 MB to download"


def test_else_the_plain_release_with_what_it_is_known_to_weigh(tmp_path: Path) -> None:
    python = fake_python(tmp_path, f"""case "$*" in *+cpu*) exit 1;; esac; echo '{report(tmp_path / "gone.whl")}'""")
    source = torch_source.choose_torch(python, "2.13.0", "", {})
    assert source.describe() == "torch==2.13.0, 3,000 MB to download"


def test_a_wished_torch_is_handed_to_pip_as_it_stands(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "exit 1")
    source = torch_source.choose_torch(python, "2.13.0", "'/some where/torch.whl' --no-deps", {})
    assert source.arguments == ("/some where/torch.whl", "--no-deps")
    assert "LENSD_TORCH" in source.describe()


def test_no_torch_at_all_says_in_one_line_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENSD_TORCH", raising=False)
    (tmp_path / "venv/bin").mkdir(parents=True)
    fake_python(tmp_path / "venv/bin", "echo 'ERROR: No matching distribution found for torch==2.13.0'; exit 1")
    place = build.Place(tmp_path)
    torch = next(step for step in build.steps(place) if step.name == "torch")
    assert not torch.holds()
    assert torch.note() == "torch==2.13.0, size not known before the download"
    with pytest.raises(build.BuildError) as caught:
        torch.run()
    said = str(caught.value)
    assert said.startswith("torch 2.13.0 can't be had here: set LENSD_TORCH to a requirement or wheel file of it")
    assert "No matching distribution found" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("version", "same"), [("2.13.0", True), ("2.13.0+cpu", True), ("2.13.0+cu130", True), ("2.13.1", False), ("2.130.0", False)]
)
def test_a_build_tag_does_not_make_another_release(version: str, same: bool) -> None:
    assert torch_source.same_release(version, "2.13.0") is same
