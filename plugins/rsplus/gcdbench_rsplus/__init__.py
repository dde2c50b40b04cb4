"""RS+ (AutoNovel's ranking statistics: Han et al., ICLR 2020, adapted to GCD) as a gcdbench plugin."""

from gcdbench_rsplus.method import RSPlus, RSPlusConfig

__all__ = ["RSPlus", "RSPlusConfig"]
