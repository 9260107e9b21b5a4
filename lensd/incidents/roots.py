"""What stands at the root of a finding that another explains."""

from collections.abc import Iterator, Sequence

from lensd.incidents.rules import Rules
from lensd.incidents.subject import same_place, subject_of
from lensd.records import Finding


class Index:
    """Findings of one tick by label, to find what stands at the root of one."""

    def __init__(self, findings: Sequence[Finding], runbooks: Rules) -> None:
        self._runbooks = runbooks
        self._by_label: dict[str, list[Finding]] = {}
        self._by_request: dict[tuple[str, str | None], list[Finding]] = {}
        for f in findings:
            self._by_label.setdefault(f.label, []).append(f)
            self._by_request.setdefault((f.label, f.request_id), []).append(f)

    def root(self, finding: Finding) -> Finding | None:
        """The last finding up the chain that can open an incident; None: the finding stands for itself."""
        passed, root, here = {finding.label}, None, finding
        while here.explained_by is not None and here.explained_by not in passed:
            passed.add(here.explained_by)
            above = next((f for f in self._candidates(here) if same_place(subject_of(f), here)), None)
            if above is None:
                break
            if self._runbooks[above.runbook].alert:
                root = above
            here = above
        return None if here.explained_by == finding.label else root  # a circle hides nothing

    def _candidates(self, finding: Finding) -> Iterator[Finding]:
        label = finding.explained_by or ""
        if finding.request_id is None:
            yield from self._by_label.get(label, ())
            return
        yield from self._by_request.get((label, finding.request_id), ())
        yield from self._by_request.get((label, None), ())
