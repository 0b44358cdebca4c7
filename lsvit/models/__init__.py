"""timm's models, run along a route."""

from lsvit.models.routed import RoutedModel

__all__ = ["RoutedModel"]
