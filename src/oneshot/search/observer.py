"""Observer of a search: what follows its trials, such as a live table."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneshot.search.store import Trial


class SearchObserver:
    """Follows a search; a subclass has the methods that it needs, the others do nothing."""

    def on_phase(self, title: str, total: int, target: str) -> None:
        """Before the trials of a phase.

        `title`: what a trial of it is called; `total`: the number of trials, 0 if the time decides
        on it; `target`: what the trials are to raise.
        """

    def on_trial_start(self, trial: "Trial", trials: "list[Trial]") -> None:
        """When a trial begins; `trials`: all of the phase so far."""

    def on_trial_end(self, trial: "Trial", trials: "list[Trial]") -> None:
        """When a trial has ended, whatever came of it."""

    def on_phase_end(self) -> None:
        """After the trials of a phase, however it has ended."""

    def on_evaluation(self) -> None:
        """Before the reasoner is evaluated with the sampler that phase 2 has found."""

    def on_evaluation_end(self) -> None:
        """After that evaluation, however it has ended."""
