"""Errors a person can act on. Each message says what was wrong, the numbers, and what to do."""

from __future__ import annotations


class PagewalkError(Exception):
    """Base of every error raised on purpose. Its message is fit to show on the page."""


class ConfigError(PagewalkError, ValueError):
    """A setting is out of range or contradicts another."""


class RequestError(PagewalkError, ValueError):
    """A request cannot be accepted: nothing was changed."""


class LookupFailed(PagewalkError):
    """There is nothing to look up there: the message says why."""


class BlockPoolError(PagewalkError):
    """A block was freed twice, or taken when none is free."""


class AuditError(PagewalkError):
    """The cache's books do not balance. Always a bug in the engine."""


class RecordingError(PagewalkError, ValueError):
    """A file is not a recording of this version."""


class ModelError(PagewalkError):
    """A model cannot be found, or the kernels lack what its attention needs."""
