"""CMS, contrastive mean-shift learning (Choi, Kang, Cho; CVPR 2024), as a gcdbench plugin."""

from gcdbench_cms.estimator import CMSEstimator
from gcdbench_cms.method import CMS, CMSConfig

__all__ = ["CMS", "CMSConfig", "CMSEstimator"]
