"""Live display of the best trials of a search."""

from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.status import Status
from rich.table import Table

from oneshot.search.observer import SearchObserver
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.search.store import Trial

_ROWS = 8


class SearchDisplay(SearchObserver):
    """A table of the best trials if stderr is a terminal, otherwise a line per trial."""

    _live: Live | None = None
    _status: Status | None = None

    def on_phase(self, title: str, total: int, target: str) -> None:
        self.title, self.target = title, target
        self._of = f"/{total}" if total else ""
        if console.stderr.is_terminal:
            self._live = Live(console=console.stderr, auto_refresh=True, refresh_per_second=2)
            self._live.start()

    def on_trial_start(self, trial: "Trial", trials: "list[Trial]") -> None:
        if self._live is not None:
            self._live.update(self._table(trials))

    def on_trial_end(self, trial: "Trial", trials: "list[Trial]") -> None:
        if self._live is not None:
            self._live.update(self._table(trials))
            return
        best = max((t.value for t in trials if t.value is not None), default=None)
        reached = trial.status if trial.value is None else f"{self.target} {trial.value:.4f}"
        top = "" if best is None else f", best {best:.4f}"
        status = "" if trial.value is None else f"{trial.status}: "
        why = f" ({status}{trial.error})" if trial.error else ""
        console.note(
            f"{self.title} {trial.number + 1}{self._of}: {reached}{why}{top}, "
            f"{trial.seconds:.1f} s, {trial.origin}: {described(trial.values)}"
        )

    def on_phase_end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_evaluation(self) -> None:
        self._status = console.status("evaluating")
        self._status.start()

    def on_evaluation_end(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _table(self, trials: "list[Trial]") -> Table:
        finished = sum(trial.is_finished for trial in trials)
        failed = sum(trial.status == "failed" for trial in trials)
        stopped = sum(trial.status == "stopped" for trial in trials)
        infeasible = sum(trial.status == "infeasible" for trial in trials)
        slow = f", {infeasible} too slow" if infeasible else ""
        table = Table(
            title=f"{self.title}: {finished}{self._of} trials, {stopped} stopped early, "
            f"{failed} failed{slow}",
            title_justify="left",
        )
        for name in ("trial", self.target, "validations", "seconds", "configuration"):
            table.add_column(name, justify="left" if name == "configuration" else "right")
        valued = [trial for trial in trials if trial.value is not None]
        for trial in sorted(valued, key=lambda t: -(t.value or 0.0))[:_ROWS]:
            table.add_row(
                str(trial.number + 1),
                f"{trial.value:.4f}",
                str(len(trial.curve)),
                f"{trial.seconds:.1f}",
                described(trial.values),
            )
        for trial in trials:
            if not trial.is_finished:
                table.add_row(str(trial.number + 1), "…", "", "", described(trial.values))
        return table


def described(values: dict[str, Any]) -> str:
    """The values of a trial in one line."""
    if not values:
        return "as trained"
    return ", ".join(
        f"{name.partition('.')[2]}={value:.4g}"
        if isinstance(value, float)
        else f"{name.partition('.')[2]}={value}"
        for name, value in values.items()
    )
