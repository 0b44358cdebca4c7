"""One training step: the loss, and the gradients of a whole batch from its parts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel
from lsvit.routes import Routes
from pipeline.config.sections import Optimisation
from pipeline.training.devices import Execution
from pipeline.training.distributed import rank_and_world, without_averaging
from pipeline.training.objectives import Batch, ForwardPass, Objective


class TrainingStep(nn.Module):
    """The forward pass of a step up to the loss.

    It is one module because DDP follows the loss to every parameter that takes part. `exit` is the
    depth of the early exit that answers; None: the model's own head.
    """

    def __init__(
        self,
        model: RoutedModel,
        objectives: Sequence[Objective],
        execution: Execution,
        exit: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.objectives = objectives
        self.execution = execution
        self.exit = exit

    def forward(self, batch: Batch, routes: Routes) -> dict[str, Tensor]:
        """Scalars, means over the batch: `loss`, and its terms without gradient."""
        taps = [objective.taps(self.model) for objective in self.objectives]
        # Later objectives read first. The order decides in which order autograd sums gradients, and
        # so the last bits of results.
        all_taps = [tap for own_taps in reversed(taps) for tap in own_taps]
        with self.execution.context():
            state = self.model.tokens(batch.images, routes, all_taps, self.exit)
            logits = self.model.answer(state, self.exit)
            forward = ForwardPass(self.model, batch, state, logits)
            loss = torch.zeros((), device=logits.device)
            values = {}
            for objective, own_taps in zip(self.objectives, taps, strict=True):
                for name, (weight, value) in objective.terms(forward, own_taps).items():
                    values[name] = value.detach()
                    if weight is not None:
                        loss = loss + weight * value
        return {"loss": loss, **values}


def backward_in_parts(
    step: nn.Module,
    batch: Batch,
    routes: Routes,
    options: Optimisation,
    scaler: torch.amp.GradScaler | None = None,
) -> dict[str, Tensor]:
    """Gradients of the mean loss over a whole batch, of which `batch` is this process's share.

    They are those of the loss that `scaler` scaled, if there is one.

    Returns:
        The sums over this share's images of what :class:`TrainingStep` gives.
    """
    world = rank_and_world()[1]
    passes = count_passes(options, world)
    sums: dict[str, Tensor] = {}
    start = 0
    for i, part in enumerate(batch.split(passes)):
        count = len(part.images)
        # Where samples have routes of their own the passes use different layers, and DDP averages
        # only the gradients of the pass that it sees.
        skip = routes.shared and i < passes - 1
        with without_averaging(step, skip):
            values = step(part, routes.part(start, count))
            loss = values["loss"] * (count * world / options.batch_size)
            if scaler is not None:
                loss = scaler.scale(loss)
            loss.backward()
        for name, value in values.items():
            sums[name] = sums.get(name, 0) + value.detach() * count
        start += count
    return sums


def count_passes(options: Optimisation, world: int) -> int:
    """Parts of a process's share of a batch: equally many in every process.

    The processes' shares of a batch may differ by one image.
    """
    largest = -(-options.batch_size // world)
    smallest = options.batch_size // world
    return min(smallest, -(-largest // (options.micro_batch_size or largest)))
