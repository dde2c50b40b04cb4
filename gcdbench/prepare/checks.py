"""What is wrong with a run can be said before anything is trained."""

from __future__ import annotations

from gcdbench.config.resolve import RunConfig
from gcdbench.errors import UsageError
from gcdbench.evaluation.selection import selection_rule
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.prepare.request import ResolvedRequest
from gcdbench.system.plugin_call import plugin_call

MAX_K = 100_000
"""More classes than this are a slip of the keyboard."""


def finds_k(asked: ResolvedRequest, config: RunConfig) -> bool:
    """Whether the method, with these settings, finds the number of classes itself."""
    with plugin_call(config.method, "finds_k"):
        return bool(asked.method_class.finds_k(config.method_config))


def check_run(asked: ResolvedRequest, config: RunConfig, data: OpenedData) -> list[str]:
    """Refuse what cannot be meant; the sentences are warnings for the record."""
    split, name = data.split, data.dataset.name
    given = config.data.k is not None or config.data.k_from is not None
    if given and finds_k(asked, config):
        raise UsageError(f"The method '{config.method}' finds the number of classes itself: leave out --k.")
    if not given and not split.complete and not finds_k(asked, config):
        raise UsageError(
            f"Some images of '{name}' have no known class, so the number of classes is not known: say how many "
            f"classes to look for with --k N (at least {len(split.base)}), or have it estimated with --k ESTIMATOR "
            "(`gcdbench list k-estimators`)."
        )
    finder = config.data.k_from or (config.method if finds_k(asked, config) else None)
    if finder is not None and not len(split.labelled):
        raise UsageError(f"Without labelled rows, which '{name}' lacks, '{finder}' cannot find the number of classes.")
    if config.data.k is not None and config.data.k < len(split.base):
        raise UsageError(f"--k is {config.data.k}, but there are {len(split.base)} base classes already.")
    if not split.complete and selection_rule(config.eval.selection).metric is not None:
        raise UsageError(f"eval.selection={config.eval.selection} needs the true classes, which '{name}' lacks.")
    if config.data.k is not None and config.data.k > MAX_K:
        raise UsageError(f"--k is {config.data.k}; at most {MAX_K} classes are possible.")
    if config.views.count != asked.method_class.traits.views:
        needed = asked.method_class.traits.views
        raise UsageError(f"views.count is {config.views.count}, but the method '{config.method}' needs {needed}.")
    if 0 < config.store.train_views < config.views.count:
        raise UsageError(
            f"store.train_views is {config.store.train_views}, but a step takes {config.views.count} different views "
            "of each image: store at least that many."
        )
    if not config.backbone.train_from and (config.store.train_views or config.store.eval_tokens != "auto"):
        raise UsageError(
            f"'{config.method}' trains from the pixels on (backbone.train_from=0): there are no tokens that "
            "store.train_views or store.eval_tokens could keep. Leave them out."
        )
    if config.store.train_views and any(kind != "weak" for kind in config.views.kinds):
        raise UsageError(
            "Stored training views are crops and mirror images only (store.train_views), but views.kinds asks for "
            f"{', '.join(config.views.kinds)}: leave out one of them."
        )
    warnings = []
    wanted = data.dataset.expected.train if data.dataset.expected else None
    if wanted is not None and wanted != len(data.index):
        warnings.append(
            f"{data.dataset.title} has {len(data.index):,} training rows instead of {wanted:,}: "
            "these numbers will not compare with published ones."
        )
    bad = data.bad_items()
    if bad:
        warnings.append(
            f"{len(bad):,} image{'s' if len(bad) > 1 else ''} of {data.dataset.title} cannot be read and "
            f"{'are' if len(bad) > 1 else 'is'} left out (see skipped.csv in the run directory). The first: {bad[0][1]}"
        )
    rule = selection_rule(config.eval.selection)
    if rule.oracle:
        warnings.append(f"The selection rule '{rule.name}' looks at hidden labels; its numbers are an oracle's.")
    return warnings
