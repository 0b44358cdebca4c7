"""What MLflow runs of a registered export: lsvit's own model behind `mlflow.pyfunc`."""

from typing import Any

import numpy as np
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from PIL import Image

from lsvit.predict import choose_routes, load, transform


class Served(PythonModel):
    """An exported folder that answers along the route its inference parameters ask for."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the export, the artifact `export`."""
        self.opened = load(context.artifacts["export"])

    @torch.inference_mode()
    def predict(
        self,
        context: PythonModelContext,
        model_input: np.ndarray,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer images (B, H, W, C), whole numbers from 0 to 255, along one route.

        `params` are `order` and `keep`, as `lsvit predict` takes them, and `seed`: the same seed,
        the same route.

        Returns:
            `class`, the likeliest of each image; `probabilities` and `logits` (B, outputs);
            `classes`, the names of the outputs.
        """
        assert params  # MLflow fills in what a request leaves out
        model, data, classes = self.opened
        keep = None if params["keep"] == model.num_layers else params["keep"]
        try:
            (route,) = choose_routes(model, params["order"], keep, 1, params["seed"])
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        if not np.array_equal(model_input.astype(np.uint8), model_input):
            raise MlflowException.invalid_parameter_value(
                f"pixels: found {model_input.min()} to {model_input.max()}, "
                "accepted: whole numbers from 0 to 255"
            )
        inputs = []
        for pixels in model_input.astype(np.uint8):
            image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
            inputs.append(transform(data)(image))
        logits = model(torch.stack(inputs), route)
        names = [*classes, *(f"output {i}" for i in range(len(classes), logits.shape[1]))]
        return {
            "class": [names[i] for i in logits.argmax(1)],
            "probabilities": logits.softmax(1).tolist(),
            "logits": logits.tolist(),
            "classes": names,
        }


set_model(Served())
