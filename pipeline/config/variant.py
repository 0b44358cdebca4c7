"""What is compared: a variant of params.yaml, made of orthogonal keys. No torch here."""

from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model

from pipeline.config.types import Added, Count, Fraction, Per, Positive, Sampler, Section

if TYPE_CHECKING:
    from pipeline.config.paper import Paper

# Names of models in results/ that no variant may have.
BASELINE = "baseline"
PRETRAINED = "pretrained"
UNTRAINED = "untrained"

Teacher = Literal["original", "baseline"]


class Encode(Section):
    """LayerShuffle-position, see :class:`lsvit.position.Encode`."""

    dim: Count = 32
    """Of the embedding; the paper's F."""
    std: Positive | None = None
    """Of the projections' initial weights; null: as at a width of 768, 0.0204."""
    shared: bool = False
    init: Literal["normal", "zeros"] = "normal"
    dropout: Fraction = 0.0


class Predict(Section):
    """LayerShuffle-predict, see :class:`lsvit.position.Predict`."""

    token: Literal["mean", "class_token"] = "mean"


class Position(Section):
    """Parts attached to the model that know or tell a layer's position."""

    encode: Encode | None = None
    predict: Predict | None = None


class Variant(Section):
    """One column of the paper's tables. :func:`variant_class` adds the keys of papers."""

    route: Sampler
    """sequential, arbitrary (LayerShuffle: a fresh random permutation), {drop: p} (LayerDrop).
    Beyond the paper: reversed, repeat_first (layer 0 at every depth), side_by_side (all layers in
    one step), {drop: p, schedule: linear} (p grows with depth), {swap: k} (k swaps of neighbours,
    or below 1 a share of all swaps; with schedule: growing, k grows from 0 over the training),
    {order: [layers]}, {skip: [layers]}, {fix_first: k}, {fix_last: k} (k layers stay)."""
    per: Per | None = None
    """What a random route is drawn for; null: `finetune.per`, where the route has that."""
    position: Position = Position()
    """LayerShuffle-position and LayerShuffle-predict (sections 3.2, 3.3)."""
    layers: Count | None = None
    """Keep only the first k layers, trained and run as a k-layer model."""
    teacher: Annotated[Teacher | None, Added(None)] = None
    """Beyond the paper: whose answers a training learns beside the labels. original: the model's
    own in its original order, in which it learns the labels too, in a second pass. baseline: the
    refined baseline's of the same seed."""
    finetune: dict[str, Any] = Field(default_factory=dict)
    """Any key of the section `finetune`, for this variant alone."""

    extensions: ClassVar[dict[str, str]] = {}  # by a paper's key: "module:class" that acts on it
    parts: ClassVar[tuple[str, ...]] = ()  # attached to models by papers' keys, see VariantKey

    def extension_places(self) -> list[str]:
        """The extensions ("module:class") whose keys the variant sets, each once."""
        fields = type(self).model_fields
        changed = [key for key in self.extensions if getattr(self, key) != fields[key].default]
        return list(dict.fromkeys(self.extensions[key] for key in changed))


@cache
def variant_class(papers: "tuple[Paper, ...]") -> type[Variant]:
    """The class of variants with the keys of these papers.

    Worker processes unpickle a variant by the class's name: the class with the keys of all papers
    is `papers.Variant`.
    """
    keys = [key for paper in papers for key in paper.variant_keys]
    fields: dict[str, Any] = {
        key.name: (Annotated[key.type, Added(key.default)], key.default) for key in keys
    }
    made = create_model("Variant", __base__=Variant, __module__="papers", **fields)
    made.extensions = {key.name: key.extension for key in keys}
    made.parts = tuple(key.part for key in keys if key.part)
    return made


def papers_variant() -> Any:
    """The class of variants with the keys of all papers."""
    return resolve_name("papers:Variant")


def read_variant(noted: Any) -> Any:
    """A variant as a job or an export noted it. Raises ValueError: it is none."""
    return papers_variant().model_validate(noted)


PLAIN = Variant(route="sequential")
