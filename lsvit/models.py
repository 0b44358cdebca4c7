"""Routed timm models: the only loop over blocks in the project, the position parts, weights in and out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lsvit.data import sha256
from lsvit.errors import UserError
from lsvit.params import Encode, ModelPreset, Position, Predict
from lsvit.routes import ENDED, Route

NO_PARTS = Position()
Samples = slice | Tensor
POSITION_PREFIX = "position."  # keys of the position parts in a weights file; all others are timm's own


class Tap(Protocol):
    """Reads the states along a route: called after each block; with per-sample routes, after each block's group of samples."""

    def __call__(self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples) -> None:
        """`depth`: blocks executed before this one; `layer`: index of its weights; `before`, `after`: (n, N, D).

        `samples`: which samples of the batch these are: ``slice(None)`` for all, else their indices (n,) on the CPU.
        """


class PositionEncoding(nn.Module):
    """LayerShuffle-position (section 3.2): z + Dropout(GELU(LN([z, e_p]) W)), before the block."""

    def __init__(self, num_layers: int, width: int, spec: Encode) -> None:
        super().__init__()
        self.shared = spec.shared
        tables = [nn.Embedding(num_layers, spec.dim) for _ in range(1 if spec.shared else num_layers)]
        if spec.init == "zeros":
            for table in tables:
                nn.init.zeros_(table.weight)
        self.embeddings: Any = nn.ModuleList(tables)
        self.projections = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width + spec.dim), nn.Linear(width + spec.dim, width), nn.GELU(), nn.Dropout(spec.dropout))
            for _ in range(num_layers)
        )

    def forward(self, state: Tensor, layer: int, depth: int) -> Tensor:
        """state: (B, N, D) -> (B, N, D)."""
        embedding = self.embeddings[0 if self.shared else layer].weight[depth]
        joined = torch.cat([state, embedding.to(state.dtype).expand(*state.shape[:2], -1)], dim=-1)
        return self.projections[layer](joined) + state


class PositionPrediction(nn.Module):
    """LayerShuffle-predict (section 3.3): u = LN(z) W, from one token or the mean of all."""

    def __init__(self, num_layers: int, width: int, spec: Predict) -> None:
        super().__init__()
        self.token = spec.token
        self.heads = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_layers)) for _ in range(num_layers))

    def forward(self, state: Tensor, layer: int) -> Tensor:
        """state: (B, N, D) -> logits over positions (B, L)."""
        return self.heads[layer](state.mean(dim=1) if self.token == "mean" else state[:, 0])


class RoutedModel(nn.Module):
    """A timm model whose blocks run along a route.

    Args:
        backbone: a timm VisionTransformer (distilled or not) or MlpMixer; its blocks must keep the token shape.
        position: the position parts to attach.

    Raises:
        UserError: the backbone is of another family, or reads a class token it does not have.
    """

    backbone: Any  # timm's families share no typed interface
    position: Any  # an nn.ModuleDict of the parts "encode" and "predict"

    def __init__(self, backbone: nn.Module, position: Position = NO_PARTS) -> None:
        super().__init__()
        from timm.models.mlp_mixer import MlpMixer
        from timm.models.vision_transformer import VisionTransformer

        if not isinstance(backbone, VisionTransformer | MlpMixer):
            raise UserError(f"model {type(backbone).__name__}: not routable, accepted: timm's VisionTransformer and MlpMixer families")
        self.backbone = backbone
        width = backbone.embed_dim
        self.num_prefix_tokens: int = getattr(backbone, "num_prefix_tokens", 0)
        if position.predict and position.predict.token == "class_token" and not self.num_prefix_tokens:
            raise UserError(f"position.predict.token: found 'class_token', accepted: mean ({type(backbone).__name__} has no class token)")
        parts: dict[str, nn.Module] = {}
        if position.encode:
            parts["encode"] = PositionEncoding(self.num_layers, width, position.encode)
        if position.predict:
            parts["predict"] = PositionPrediction(self.num_layers, width, position.predict)
        self.position = nn.ModuleDict(parts)

    @property
    def num_layers(self) -> int:
        """How many blocks the model has."""
        return len(self.backbone.blocks)

    def embed(self, images: Tensor) -> Tensor:
        """images: (B, C, H, W) -> the tokens before the first block (B, N, D)."""
        b = self.backbone
        if hasattr(b, "stem"):  # MlpMixer
            return b.stem(images)
        return b.norm_pre(b.patch_drop(b._pos_embed(b.patch_embed(images))))

    def forward(self, images: Tensor, route: Route | Tensor | None = None, taps: Sequence[Tap] = ()) -> Tensor:
        """Execute the layers of `route`, in order, and the classification head.

        Args:
            images: (B, C, H, W).
            route: layer indices; layers may repeat or be absent. Default: all, in their original order, which equals timm's
                own forward bit for bit. Or one route per sample, an integer tensor (B, L), a shorter one ending in -1s: at
                each depth the samples that run the same layer next go through it together.
            taps: called after each block.

        Returns:
            Logits (B, num_classes).

        Raises:
            IndexError: a layer of the route does not exist, or the route outruns the positions of a position part.
            ValueError: per-sample routes are no integer tensor of B rows, are empty for a sample, or go on after a -1.
        """
        route = tuple(range(self.num_layers)) if route is None else route
        if isinstance(route, Tensor):
            route = route.cpu()
            self._check_routes(route, len(images))
            state = self._run_groups(self.embed(images), route, taps)
        else:
            self._check_layers(route, min(route, default=0), max(route, default=0), len(route))
            state = self.embed(images)
            for depth, layer in enumerate(route):
                state = self._step(state, layer, depth, taps, slice(None))
        return self.backbone.forward_head(self.backbone.norm(state))

    def _step(self, before: Tensor, layer: int, depth: int, taps: Sequence[Tap], samples: Samples) -> Tensor:
        """One layer with its position part, on samples that share it: (n, N, D) -> (n, N, D)."""
        state = self.position["encode"](before, layer, depth) if "encode" in self.position else before
        state = self.backbone.blocks[layer](state)
        for tap in taps:
            tap(depth, layer, before, state, samples)
        return state

    def _run_groups(self, state: Tensor, routes: Tensor, taps: Sequence[Tap]) -> Tensor:
        """Per-sample routes (B, L): at each depth the samples are sorted by their next layer and split into its groups.

        The rows stay sorted between depths, so that each depth moves every sample once; `row[i]` is where sample i lies.
        """
        row = torch.arange(len(routes))
        for depth, layers in enumerate(routes.unbind(1)):
            order = layers.argsort(stable=True)  # samples by layer; those at their end, -1, first
            sizes = torch.bincount(layers + 1, minlength=self.num_layers + 1).tolist()
            groups = state.index_select(0, row[order].to(state.device, non_blocking=True)).split(sizes)
            samples = order.split(sizes)
            done = [groups[0]] if sizes[0] else []
            done += [
                self._step(groups[layer + 1], layer, depth, taps, samples[layer + 1])
                for layer in range(self.num_layers)
                if sizes[layer + 1]
            ]
            state = torch.cat(done)
            row[order] = torch.arange(len(routes))
        return state.index_select(0, row.to(state.device, non_blocking=True))

    def _check_layers(self, route: Route | list[Route], lowest: int, highest: int, length: int) -> None:
        for layer in (lowest, highest):
            if not 0 <= layer < self.num_layers:
                raise IndexError(f"route {route}: layer {layer} does not exist, the model has layers 0 to {self.num_layers - 1}")
        if len(self.position) and length > self.num_layers:
            raise IndexError(f"route of {length} layers: the position parts know {self.num_layers} positions")

    def _check_routes(self, routes: Tensor, batch: int) -> None:
        if routes.ndim != 2 or len(routes) != batch or routes.is_floating_point() or routes.dtype == torch.bool:
            raise ValueError(f"per-sample routes: found {routes.dtype} {tuple(routes.shape)}, accepted: integers ({batch}, length)")
        ended = routes == ENDED
        if (ended[:, :-1] & ~ended[:, 1:]).any() or ended[:, :1].any():
            raise ValueError("per-sample routes: found -1 before a layer or an empty route, accepted: -1 after a route's last layer alone")
        layers = routes[~ended]
        if len(layers):
            worst = routes[((routes < ENDED) | (routes >= self.num_layers)).any(1)]
            self._check_layers(tuple((worst if len(worst) else routes)[0].tolist()), int(layers.min()), int(layers.max()), routes.shape[1])


class PositionLogits:
    """A tap that collects the position prediction of every executed layer."""

    def __init__(self, model: RoutedModel) -> None:
        self.predict = model.position["predict"]
        self.groups: list[list[Tensor]] = []  # by depth, then by group of samples

    def __call__(self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples) -> None:
        """Called after each block; states (n, N, D)."""
        if depth == len(self.groups):
            self.groups.append([])
        self.groups[depth].append(self.predict(after, layer))

    @property
    def logits(self) -> list[Tensor]:
        """By depth: (n, L), the n samples whose routes reach it, grouped by the layer they ran."""
        return [torch.cat(groups) for groups in self.groups]


def create_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model with a head of `num_classes`, its starting weights loaded or, for `scratch`, initialised.

    Raises:
        UserError: timm does not know the model, refuses its arguments, or the weights cannot be had.
    """
    import timm

    name, _, tag = preset.timm.partition(".")
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        raise UserError(f"timm: no model {name!r}; timm {timm.__version__} knows, for example, {', '.join(near)}")
    known_tags = [m.partition(".")[2] for m in timm.list_pretrained(f"{name}.*")]
    if tag and tag not in known_tags:
        raise UserError(f"timm: {name} has no weights tagged {tag!r}, accepted: {', '.join(known_tags)}")
    kwargs: dict[str, Any] = dict(preset.kwargs) | {"num_classes": num_classes, "pretrained": preset.weights == "hub"}
    try:
        model: Any = timm.create_model(preset.timm, **kwargs)
    except Exception as error:  # timm and the hub client raise many kinds
        if preset.weights == "hub":
            raise UserError(
                f"weights of {preset.timm} cannot be had ({type(error).__name__}); three ways to get them: run where the Hugging "
                f"Face hub can be reached; copy a filled hub cache here and set HF_HOME; give a local file, "
                f"`-S models.NAME.weights=FILE.safetensors`"
            ) from None
        raise UserError(f"timm cannot make {preset.timm}: {' '.join(str(error).split())[:200]}") from None
    if preset.weights not in ("hub", "scratch"):
        _load_local(model, Path(preset.weights), preset.sha256)
    if preset.init_std is not None and preset.weights == "scratch":
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=preset.init_std)
    return model


def _load_local(model: Any, path: Path, expected_sha256: str | None) -> None:
    """Load a safetensors file of timm's names; a head for another number of classes is left out, all else must fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"weights: found {str(path)!r}, which does not exist, accepted: a .safetensors file, hub, scratch")
    if expected_sha256 and sha256(path) != expected_sha256:
        raise UserError(f"{path}: its sha256 is {sha256(path)}, params.yaml expects {expected_sha256}")
    try:
        tensors = {k: t for k, t in load_file(path).items() if not k.startswith(POSITION_PREFIX)}
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None
    wanted = {k: t.shape for k, t in model.state_dict().items()}
    heads = {k for k in wanted if k.startswith(("head.", "head_dist."))}
    tensors = {k: t for k, t in tensors.items() if k not in heads or t.shape == wanted[k]}
    unfit = {k for k, t in tensors.items() if t.shape != wanted.get(k)} | (wanted.keys() - heads - tensors.keys())
    if unfit:
        raise UserError(
            f"{path}: does not fit {type(model).__name__}: {len(unfit)} tensors missing, unknown or of another shape, first {min(unfit)!r}"
        )
    model.load_state_dict(tensors, strict=False)


def build(
    preset: ModelPreset, num_classes: int, position: Position = NO_PARTS, layers: int | None = None, weights: Path | None = None
) -> RoutedModel:
    """A routed model of the preset's architecture, of its first `layers` layers alone if given, with weights from a file.

    The file holds timm's names (of all layers or of those kept) and, below ``position.``, the position parts; parts the
    file does not have keep their initialisation.
    """
    backbone = create_backbone(preset.model_copy(update={"weights": "scratch"}), num_classes)
    backbone.blocks = backbone.blocks[:layers]
    model = RoutedModel(backbone, position)
    if weights is not None:
        load_weights(model, weights)
    return model


def save_weights(model: RoutedModel, path: Path) -> None:
    """Write a safetensors file that stock timm loads (the position parts apart, below ``position.``)."""
    from safetensors.torch import save_file

    tensors = {name.removeprefix("backbone."): t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, path)


def load_weights(model: RoutedModel, path: Path) -> None:
    """Load a file written by :func:`save_weights`, or a timm state_dict. Raises RuntimeError on names that do not fit."""
    from safetensors.torch import load_file

    tensors = {k: t for k, t in load_file(path).items() if not _beyond(k, model.num_layers)}
    position = {k.removeprefix(POSITION_PREFIX): t for k, t in tensors.items() if k.startswith(POSITION_PREFIX)}
    model.backbone.load_state_dict({k: t for k, t in tensors.items() if not k.startswith(POSITION_PREFIX)})
    if position:
        model.position.load_state_dict(position)


def _beyond(key: str, num_layers: int) -> bool:
    return key.startswith("blocks.") and int(key.split(".")[1]) >= num_layers


def input_size(model: RoutedModel, preset: ModelPreset) -> tuple[int, int]:
    """(in_chans, img_size) of the images the model takes."""
    height, width = (getattr(model.backbone, "stem", None) or model.backbone.patch_embed).img_size
    if height != width:
        raise UserError(f"img_size: found {height}x{width}, accepted: square images")
    return preset.kwargs.get("in_chans", 3), height


def normalisation(preset: ModelPreset, meta: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels: the published weights' own, else the data set's."""
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    if preset.weights == "scratch" or cfg is None or len(cfg.mean) != preset.kwargs.get("in_chans", 3):
        return tuple(meta["mean"]), tuple(meta["std"])
    return tuple(cfg.mean), tuple(cfg.std)


def pick_device(name: str) -> torch.device:
    """The device of a `device:` value. Raises UserError if CUDA is asked for and absent."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: found 'cuda', but this machine has no CUDA device; accepted here: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
