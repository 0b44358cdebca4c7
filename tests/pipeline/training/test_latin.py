"""Training with Latin routes: parts of a batch, be they of processes or passes, have the rows of
the whole batch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsvit.latin import Latin
from lsvit.routed import RoutedModel
from lsvit.routes import Routes, RouteTable
from papers import Variant
from papers.exits.section import ExitHeads
from papers.smoothing.section import Losses
from pipeline.config.variant import Position
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build
from pipeline.training import loop
from pipeline.training.loop import draw_route, make_step
from pipeline.training.objectives import Batch
from pipeline.training.step import backward_in_parts
from tests.models import CPU, assert_near
from tests.pipeline.training.test_loop import outcome, run

Config = Callable[..., TrainConfig]
ROUTES: list[Any] = ["arbitrary", {"fix_first": 1}, {"fix_last": 2}, {"fix_first": 4}]
DROP = {"drop": 0.3}
PARTS = {"encode": {"dim": 3}, "predict": {}}


@pytest.mark.parametrize("kind", [Latin, RouteTable])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [7, 24, 31])
@pytest.mark.parametrize("num_layers", [4, 12])
def test_the_parts_of_processes_are_the_rows_of_the_batch(
    train_config: Config,
    monkeypatch: pytest.MonkeyPatch,
    num_layers: int,
    batch_size: int,
    world: int,
    kind: type,
) -> None:
    """Latin ones, and those of single samples."""
    per = "latin" if kind is Latin else "sample"
    for route in ROUTES:
        config = train_config(route=route, per=per, batch_size=batch_size)
        drawn = draw_route(config, num_layers, 1, 0)
        assert isinstance(drawn, kind)
        whole, parts = drawn.rows(batch_size), []
        for rank, images in enumerate(np.array_split(np.arange(batch_size), world)):
            monkeypatch.setattr(loop, "rank_and_world", lambda rank=rank: (rank, world))
            parts.append(draw_route(config, num_layers, 1, 0).rows(len(images)))
        monkeypatch.undo()
        assert np.array_equal(np.concatenate(parts), whole)


def gradients(config: TrainConfig, routes: Routes, batch: Batch) -> dict[str, torch.Tensor]:
    """Of one step in double precision, with all parts of the variant."""
    torch.manual_seed(0)
    model = build(config.model, 10, config.variant).double()
    model.checkpointing = config.options.checkpointing
    step = make_step(model, config.variant, 1.0, CPU)
    found = backward_in_parts(step, batch, routes, config.options)
    assert torch.isfinite(found["loss"])
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "position parts": {"position": Position.model_validate(PARTS)},
    "losses against over-smoothing": {
        "losses": Losses.model_validate({"cosine": 0.5, "contrastive": 1.0})
    },
    "exits": {"exits": ExitHeads(branch="mlp", depths=[1, 3], hidden=4, dropout=0.0)},
}


FORMS = [*(("latin", route) for route in ROUTES[:3]), ("batch", DROP), ("sample", DROP)]


@pytest.mark.parametrize(("per", "route"), FORMS, ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_parts_of_a_batch_give_the_gradients_of_the_whole(
    train_config: Config, setting: str, per: Any, route: Any
) -> None:
    """Passes of at most 1, 5 or 7 of 13 images, which neither these numbers nor 4 layers divide;
    and as its rows sample by sample.
    """
    variant = Variant(route=route, **SETTINGS[setting])
    config = train_config(per=per, batch_size=13).model_copy(update={"variant": variant})
    torch.manual_seed(1)
    batch = Batch(torch.randn(13, 1, 28, 28, dtype=torch.float64), torch.randint(0, 10, (13,)))
    routes = draw_route(config, 4, 1, 0)
    expected = gradients(config, routes, batch)
    assert len(expected) > 30
    # Losses of patches are in single precision.
    close = 1e-8 if setting == "losses against over-smoothing" else 1e-12
    found = []
    for micro_batch_size, checkpointing in ((1, False), (5, False), (7, False), (5, True)):
        changes = {"micro_batch_size": micro_batch_size, "checkpointing": checkpointing}
        options = config.options.model_copy(update=changes)
        other = config.model_copy(update={"options": options})
        found.append(gradients(other, routes, batch))
    found.append(gradients(config, RouteTable(routes.rows(13)), batch))
    for others in found:
        assert_near(others, expected, close)


def test_what_a_training_asks_its_model_for(
    train_config: Config, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One order a batch, one a sample, or Latin ones, where every layer has an equal share at each
    depth; each trains to other weights, and again to the same.
    """
    seen: list[np.ndarray] = []
    tokens = RoutedModel.tokens

    def spy(self: RoutedModel, images: torch.Tensor, route: Any = None, *more: Any) -> torch.Tensor:
        if self.training:
            seen.append(route.rows(len(images)))
        return tokens(self, images, route, *more)

    monkeypatch.setattr(RoutedModel, "tokens", spy)
    counts = {"batch": 1, "latin": 4, "sample": 12}  # different orders of 32, at least
    for per, count in counts.items():
        seen.clear()
        for name in (per, f"{per} again"):
            config = train_config(position={"predict": {}}, epochs=1, per=per)
            run(config, prepared, tmp_path / name)
        assert outcome(tmp_path / per) == outcome(tmp_path / f"{per} again")
        assert len(seen) == 2 * 3
        for rows in seen:
            assert np.array_equal(np.sort(rows, axis=1), [range(4)] * 32)
            orders = len(np.unique(rows, axis=0))
            assert orders > count if per == "sample" else orders == count
            if per == "latin":
                assert all(np.array_equal(np.bincount(layers), [8] * 4) for layers in rows.T)
        assert len({rows.tobytes() for rows in seen[:3]}) > 1
    assert len({outcome(tmp_path / per) for per in counts}) == 3
