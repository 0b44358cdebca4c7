"""The old place of :class:`lsvit.RoutedModel`, which exported model cards name."""

from lsvit.routed import RoutedModel

__all__ = ["RoutedModel"]
