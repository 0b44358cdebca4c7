"""What MLflow runs of a registered export, as a model from code: lsvit's own model behind `mlflow.pyfunc`."""

from typing import Any

import numpy as np
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from PIL import Image

from pipeline.deploy.predict import choose_routes, open_weights, transform
from pipeline.errors import UserError

EXPORT = "export"  # name of the exported folder among the model's artifacts


class Served(PythonModel):
    """An exported folder that answers along the route its inference parameters ask for."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the export."""
        self.opened = open_weights(context.artifacts[EXPORT])

    @torch.inference_mode()
    def predict(
        self,
        context: PythonModelContext,
        model_input: np.ndarray,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer images along one route.

        Args:
            context: unused.
            model_input: pixels (B, H, W, C), whole numbers from 0 to 255, prepared as those of an image file are.
            params: `order`, sequential or arbitrary, or any other that `lsvit predict` takes; `keep`, so many of the layers; `seed` of
                what is random in both: the same one, the same route.

        Returns:
            `class`, the likeliest of each image; `probabilities` and `logits` (B, outputs); `classes`, the names of the outputs.

        Raises:
            MlflowException: no such order or number of layers, or no pixels; INVALID_PARAMETER_VALUE, in one line.
        """
        assert params  # MLflow fills in what a request leaves out
        model, data, classes = self.opened
        order, keep, seed = (params[key] for key in ("order", "keep", "seed"))
        odd = model_input[(model_input < 0) | (model_input > 255) | (model_input % 1 != 0)]
        try:
            if odd.size:
                raise UserError(
                    f"inputs: found {odd[0]:g}, accepted: pixels, whole numbers from 0 to 255"
                )
            if seed < 0:
                raise UserError(f"seed: found {seed}, accepted: 0 or more")
            (route,) = choose_routes(
                model, order, None if keep == model.num_layers else keep, 1, seed
            )
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error).replace("--", "")) from None
        images = [
            Image.fromarray(each.squeeze(-1) if each.shape[-1] == 1 else each)
            for each in model_input.astype(np.uint8)
        ]
        logits = model(torch.stack([*map(transform(data), images)]), route)
        names = [*classes, *(f"output {i}" for i in range(len(classes), logits.shape[1]))]
        return {
            "class": [names[i] for i in logits.argmax(1)],
            "probabilities": logits.softmax(1).tolist(),
            "logits": logits.tolist(),
            "classes": names,
        }


set_model(Served())
