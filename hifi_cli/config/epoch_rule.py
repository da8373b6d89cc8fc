"""What is measured after each epoch, which epoch is kept, and which score tables show."""

from dataclasses import dataclass
from typing import Literal

# A score is of the best epoch by the selecting rows, of the last one, or of that with the highest
# score.
EpochChoice = Literal["best", "last", "max"]
Selection = Literal["validation", "holdout", "few-shot"]


@dataclass(frozen=True)
class EpochRule:
    """The rule by which a run chooses the epoch that it keeps, and the score that tables show.

    The kept epoch is the one whose model and predictions are stored. The score in tables is of the
    same epoch, but for `max`: the highest score of all epochs stands beside the best epoch's model.

    After each epoch the selecting rows are measured. When the reported ones are measured, and
    which epoch is kept, follows from both attributes:

        selection          report   reported rows are measured after                  kept epoch
        validation         best     every epoch, as they are the selecting ones       best
        validation         last     every epoch                                       last
        validation         max      every epoch                                       best
        holdout, few-shot  best     the last epoch; then with the best epoch's model  best
        holdout, few-shot  last     the last epoch, and each that is the best so far  last
        holdout, few-shot  max      every epoch                                       best

    Attributes:
        report: the score that tables show: after the epoch that is `best` by the selecting rows,
            after the `last` one, or the `max` over all epochs.
        selection: the rows that select the best epoch: `validation`, the reported split itself, or
            rows that are taken from the train split, `holdout` or `few-shot`.
    """

    report: EpochChoice
    selection: Selection

    @property
    def selects_apart(self) -> bool:
        """Whether other rows than the reported ones select the best epoch."""
        return self.selection != "validation"

    @property
    def kept(self) -> Literal["last", "best"]:
        """The epoch whose model and predictions are kept: the best one also where tables show `max`."""
        return "last" if self.report == "last" else "best"

    @property
    def measures_every_epoch(self) -> bool:
        """Whether the reported rows are measured after every epoch: the maximum is then known."""
        return self.report == "max" or not self.selects_apart

    @property
    def is_chosen_on_reported_rows(self) -> bool:
        """Whether the score is chosen on the very rows that it is of, which makes it too high."""
        return self.report == "max" or (self.report == "best" and not self.selects_apart)

    def measures_reported_rows(self, *, is_best: bool, is_last: bool) -> bool:
        """Return whether the reported rows are measured after an epoch.

        The best epoch of a run that keeps it can be measured later, with the kept model. A run that
        keeps the last one cannot go back.

        Args:
            is_best: whether no epoch before was as good, by the selecting rows.
            is_last: whether the training ends with the epoch.
        """
        return self.measures_every_epoch or is_last or (is_best and self.kept == "last")

    def keeps(self, *, is_best: bool, may_be_kept: bool) -> bool:
        """Return whether model and predictions of an epoch take the place of those kept so far.

        Args:
            is_best: as for `measures_reported_rows`.
            may_be_kept: whether the last stage has trained the model, or the run ends.
        """
        return is_best or (may_be_kept and self.kept == "last")
