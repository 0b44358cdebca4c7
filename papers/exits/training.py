"""Training of whole models with early exits (multi-exit ViT, section II-A)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from lsvit.routed import RoutedModel, Tap
from lsvit.taps import ExitLogits
from papers.exits.branches import make_branch
from papers.exits.section import ExitHeads
from pipeline.models.extensions import Extension
from pipeline.models.tokens import token_shape
from pipeline.training.objectives import ClassLoss, ForwardPass, Objective, Terms, task_loss

if TYPE_CHECKING:
    from pipeline.training.scoring import Score

Loss = TypeVar("Loss", Tensor, float)


class ExitTraining(Extension):
    """The key `exits` of a variant: all exits together, or one step of the layer-wise way."""

    def __init__(self, variant: Any) -> None:
        super().__init__(variant)
        self.heads: ExitHeads = variant.exits
        self.exit = self.heads.trained_exit

    def attach(self, model: RoutedModel) -> None:
        """Attach a branch at every depth."""
        shape = token_shape(model.backbone)
        outputs = model.backbone.num_classes
        for depth in self.heads.depths:
            model.exits[str(depth)] = make_branch(self.heads.branch, shape, outputs, self.heads)

    def freeze(self, model: RoutedModel) -> None:
        """Under the layer-wise strategy, train only the step's layers and its exit."""
        step = self.heads.step
        if step is None:
            return
        bounds = (0, *self.heads.depths, model.num_layers)
        layers = range(bounds[step], bounds[step + 1])
        for name, parameter in model.named_parameters():
            part, *rest = name.removeprefix("backbone.").split(".")
            if part == "exits":
                is_trained = rest[0] == str(self.exit)
            elif part == "blocks":
                is_trained = int(rest[0]) in layers
            elif part.startswith("head") or part in ("norm", "fc_norm", "attn_pool"):
                is_trained = layers.stop == model.num_layers  # behind the last layer
            else:
                is_trained = layers.start == 0  # before the first layer
            parameter.requires_grad_(is_trained)

    def objectives(self, model: RoutedModel, objectives: list[Objective]) -> list[Objective]:
        """Where all exits are trained together, their loss replaces that of the last one."""
        if self.heads.step is not None:
            return objectives
        others = [each for each in objectives if not isinstance(each, ClassLoss)]
        return [ExitLoss(self.heads), *others]

    def judge(self, score: "Score") -> "Score":
        """The objective, from the validation's losses."""
        exits = {depth: loss for depth, (loss, _) in score.exits.items()}
        return score._replace(objective=exit_objective(self.heads, score.loss, exits))


class ExitLoss(ClassLoss):
    """The loss of all exits together, the last one included."""

    def __init__(self, heads: ExitHeads) -> None:
        self.heads = heads

    def taps(self, model: RoutedModel) -> Sequence[Tap]:
        """A reader of the exits' answers."""
        return (ExitLogits(model),)

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """The objective; the last exit's loss and accuracy are noted beside it."""
        terms = super().terms(forward, taps)
        _, final = terms["class_loss"]
        labels = forward.batch.labels
        # Means over the batch: a sample that ends before an exit counts as nothing, also where a
        # batch is run in parts.
        exits = {}
        for depth, (samples, answers) in taps[0].logits.items():
            exits[depth] = task_loss(answers, labels[samples], "sum") / len(labels)
        objective = exit_objective(self.heads, final, exits)
        return terms | {"class_loss": (None, final), "objective": (1.0, objective)}


def exit_objective(heads: ExitHeads, final: Loss, exits: Mapping[int, Loss]) -> Loss:
    """The loss of a model with early exits.

    End-to-end it is l_t = final_weight l + sum over b of weight l_b; layer-wise that of the step's
    exit.

    Args:
        heads: the weights, and the step of the layer-wise strategy.
        final: the loss of the last exit.
        exits: by depth, the losses of the others that were reached.
    """
    if heads.step is not None:
        return final if heads.trained_exit is None else exits[heads.trained_exit]
    return heads.final_weight * final + sum(heads.weight * loss for loss in exits.values())
