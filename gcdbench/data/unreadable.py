"""Why an image cannot be read: because of the file, or because of the machine at the moment."""

from __future__ import annotations

from gcdbench.errors import BadImage, DataError, PassingFault
from gcdbench.system.files import MACHINE


def unreadable_image(name: str, fault: Exception) -> DataError:
    """The error for an image; a PassingFault if nothing is known about the file."""
    passing = isinstance(fault, MemoryError) or (isinstance(fault, OSError) and fault.errno in MACHINE)
    reason = str(fault) or type(fault).__name__
    return (PassingFault if passing else BadImage)(f"The image {name} cannot be read: {reason}.")
