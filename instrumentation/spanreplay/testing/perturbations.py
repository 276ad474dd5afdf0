"""A Hypothesis strategy of plans that change a recording's answers a little: `@given(spanreplay.perturbations(run))`.

    RUN = "tests/recordings/refund.replay"

    @given(spanreplay.perturbations(RUN, only="tool:*"))
    def test_never_refunds_more_than_was_paid(plan):
        with spanreplay.replay(RUN, plan=plan):
            assert refund_agent() <= PAID

A failing example shrinks to the fewest changed fields, each changed as little as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.plan import SERVE, Plan
from spanreplay.replayer.variations.seeded import are_compatible
from spanreplay.replayer.variations.sites import CHANGES_MAX, KINDS, Change, Field, find_fields

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["perturbations"]


def perturbations(
    run: str | Path | Recording,
    *,
    only: str = "*",
    fields: str = "*",
    kinds: Sequence[str] = KINDS,
    changes_max: int = CHANGES_MAX,
) -> SearchStrategy[Plan]:
    """Return a strategy of plans for `spanreplay.replay(run, plan=…)`, each with a few changed answers.

    `run` is a `.replay` file, a run id or a Recording. `only` and `fields` choose calls and fields, as `--only` and
    `--field` of `spanreplay fuzz` do; `kinds` are kinds of changes: value, list, missing, added, type, stream, error.
    Calls that differ afterwards get the recorded answers. Needs Hypothesis.

    Raises: ConfigError if there is nothing to change, or Hypothesis is missing; SourceError, ServiceError.
    """
    try:
        from hypothesis import strategies
    except ImportError as exc:
        raise ConfigError(
            "perturbations() needs Hypothesis, which is not installed", hint="pip install hypothesis"
        ) from exc
    unknown = [each for each in kinds if each not in KINDS]
    if unknown:
        raise ConfigError(f"perturbations(): {unknown[0]!r} is not one of {', '.join(KINDS)}")
    found = find_fields(_load(run), only=only, fields=fields, kinds=kinds)
    if not found:
        raise ConfigError(f"no answer in this run has a field that could be changed (only={only!r})")
    changes = strategies.sampled_from(found).flatmap(_changes)
    variations = strategies.lists(changes, min_size=1, max_size=changes_max).map(tuple).filter(are_compatible)

    @strategies.composite  # unlike `map`, it shows the plan in a failing example, and not how the plan was made
    def plans(draw: DrawFn) -> Plan:
        return Plan().changed(SERVE).set(*(change.patch for change in draw(variations)))

    return plans()


def _load(run: str | Path | Recording) -> Recording:
    if isinstance(run, Recording):
        return run
    from spanreplay.recording.source import load_source

    return load_source(str(run))


def _changes(field: Field) -> SearchStrategy[Change]:
    from hypothesis import strategies

    def amounts(at: int) -> SearchStrategy[Change]:
        site = field.sites[at]
        every = strategies.integers(0, site.amounts - 1)
        amount = every | strategies.sampled_from(site.marks) if site.marks else every
        return amount.map(lambda by: Change(field, site, by))

    return strategies.integers(0, len(field.sites) - 1).flatmap(amounts)
