"""A kill at any write of a training: what the next run leaves is what its history describes."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lsvit.weights import save_weights
from pipeline.config.datasets import DatasetPreset
from pipeline.data.prepare import prepare
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import HISTORY, Row, sha256, weights_file
from pipeline.training import loop
from pipeline.training.loop import CHECKPOINT, Run
from tests.pipeline.training.test_loop import run

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


class Killed(BaseException):
    pass


@pytest.fixture
def data(raw: Path, tmp_path: Path) -> Path:
    """80 training images, 16 held out."""
    prepare("bars", DatasetPreset(source="embedded", heldout=16), raw, tmp_path / "data")
    return tmp_path / "data"


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the checkpoint, which may stay behind where the history was written last."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CHECKPOINT}


def kill_at(patch: pytest.MonkeyPatch, number: int, when: str) -> list[str]:
    """Kill the training at one of the files that it writes, in the middle of writing or after it;
    the names of all so far.
    """
    written: list[str] = []
    replace = loop._replace

    def write(path: Path, content: Callable[[Path], object]) -> None:
        written.append(path.name)
        if len(written) > number and when == "within":
            path.with_suffix(".partial").write_text("half of")
            raise Killed
        replace(path, content)
        if len(written) > number:
            raise Killed

    patch.setattr(loop, "_replace", write)
    return written


@pytest.mark.slow
@pytest.mark.parametrize("when", ["within", "after"])
def test_an_interrupted_training_equals_an_undisturbed_one(
    train_config: Config, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed at every file, of epochs that are the best so far and of others, every run goes on to
    the same bytes.
    """
    config = train_config(epochs=4, lr=0.2, batch_size=40)
    with monkeypatch.context() as patch:
        files = kill_at(patch, 100, when)
        run(config, data, tmp_path / "whole")
    expected = content(tmp_path / "whole")
    after_checkpoints = {
        following for name, following in itertools.pairwise(files) if name == CHECKPOINT
    }
    assert CHECKPOINT in after_checkpoints  # of an epoch that is not the best
    assert "weights.safetensors" in after_checkpoints
    for number in range(len(files)):
        folder = tmp_path / f"killed_{number}"
        with monkeypatch.context() as patch:
            assert kill_at(patch, number, when) == []
            with pytest.raises(Killed):
                run(config, data, folder)
        run(config, data, folder)
        assert content(folder) == expected, files[: number + 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "losses",
    [
        (6.0, 5.0, 4.0, 3.0, 2.0, 1.0),
        (3.0, 1.0, 6.0, 5.0, 4.0, 2.0),
        (1.0, 5.0, 4.0, 3.0, 2.0, 6.0),
    ],
    ids=["better and better", "a good epoch that is lost", "the first is best"],
)
@pytest.mark.parametrize("when", ["within", "after"])
def test_the_kept_weights_are_of_the_epoch_that_the_history_says(
    train_config: Config,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    losses: tuple[float, ...],
) -> None:
    """On a device that does not repeat itself, an epoch that is run again has other weights and
    another loss.
    """
    config = train_config(epochs=3, batch_size=40)
    for number in itertools.count():
        folder = tmp_path / f"killed_{number}"
        made: dict[tuple[str, float], str] = {}
        following = {"validation": iter(losses), "heldout": iter(losses[::-1])}
        validate = scripted(following, made, tmp_path / "model.safetensors")
        monkeypatch.setattr(loop, "validate", validate)
        with monkeypatch.context() as patch:
            files = kill_at(patch, number, when)
            with suppress(Killed):
                run(config, data, folder)
                break
        run(config.model_copy(update={"seed": 1}), data, folder)  # other batches
        history: list[Row] = read_json(folder / HISTORY, list)
        for judge in following:
            least = min(row[f"{judge}/arbitrary/loss"] for row in history)
            assert sha256(folder / weights_file(judge)) == made[judge, least], (files, judge)
    assert number == len(files) >= 3 + 2 + 1  # checkpoints, weights of either judge, the history


def scripted(
    losses: dict[str, Iterator[float]], made: dict[tuple[str, float], str], file: Path
) -> Callable[..., Row]:
    """A validation that answers with given losses, one after another, and notes the weights that it
    saw: (judge, loss) -> sha256.
    """

    def validate(run: Run, judge: str, *rest: Any) -> Row:
        loss = next(losses[judge])
        save_weights(run.model, file)
        made[judge, loss] = sha256(file)
        return {f"{judge}/arbitrary/loss": loss}

    return validate
