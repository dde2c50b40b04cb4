"""InfoSieve (Rastegar et al., NeurIPS 2023) as a gcdbench plugin."""

from gcdbench_infosieve.config import InfoSieveConfig
from gcdbench_infosieve.method import InfoSieve

__all__ = ["InfoSieve", "InfoSieveConfig"]
