"""What the student learns from the teacher, and how fast the teacher follows."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import in_float32


@in_float32
def taught(student: Tensor, teacher: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Mean cross entropy of the student's answers with the teacher's sharpened ones, row by row."""
    said = F.softmax(teacher.detach() / teacher_temp, dim=1)
    return -(said * F.log_softmax(student / student_temp, dim=1)).sum(1).mean()


def crossed(student: Tensor, teacher: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Each view's teacher teaches the other view's student."""
    first, second = teacher.chunk(2)
    one, two = student.chunk(2)
    forth = taught(two, first, student_temp, teacher_temp)
    return (forth + taught(one, second, student_temp, teacher_temp)) / 2


def momentum(epoch: float, epochs: int, base: float, end: float) -> float:
    """Share of itself that the teacher keeps at a step of this epoch."""
    return end - (1 - base) * (math.cos(math.pi * epoch / epochs) + 1) / 2
