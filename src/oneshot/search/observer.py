"""Observer of a search, such as a live table of its trials."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneshot.search.store import Trial


class SearchObserver:
    """Base class of observers; a subclass overrides the methods that it needs."""

    def on_phase(self, title: str, total: int, target: str) -> None:
        """Before the trials of a phase.

        `title`: the name of a trial of this phase; `total`: the number of trials, 0 if only the
        time is limited; `target`: the metric that the search maximises.
        """

    def on_trial_start(self, trial: "Trial", trials: "list[Trial]") -> None:
        """When a trial starts; `trials`: all trials of the phase so far."""

    def on_trial_end(self, trial: "Trial", trials: "list[Trial]") -> None:
        """When a trial has ended, with any status."""

    def on_phase_end(self) -> None:
        """After the trials of a phase, even after an error."""

    def on_evaluation(self) -> None:
        """Before the reasoner is evaluated with the sampler of phase 2."""

    def on_evaluation_end(self) -> None:
        """After that evaluation, even after an error."""
