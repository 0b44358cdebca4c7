"""What a running job reports to the stage that started it."""

from collections.abc import Generator
from typing import Any

# An epoch's numbers by name, the `progress` within an epoch, a finished `cell`, or a `text`.
Event = dict[str, Any]
ENDED: Event = {}  # the last event of a job
Events = Generator[tuple[int, Event], None, None]  # (index of the job, event)
