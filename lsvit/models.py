"""timm's models, run along a route."""

from lsvit.routed import RoutedModel

__all__ = ["RoutedModel"]
