"""The rule by which a run chooses the epoch that it keeps, case by case."""

import pytest

from hifi_cli.config.epoch_rule import EpochRule


@pytest.mark.parametrize(
    ("report", "selection", "kept", "measures_every_epoch", "is_chosen_on_reported_rows"),
    [
        ("best", "validation", "best", True, True),
        ("last", "validation", "last", True, False),
        ("max", "validation", "best", True, True),
        ("best", "holdout", "best", False, False),
        ("last", "holdout", "last", False, False),
        ("max", "holdout", "best", True, True),
        ("best", "few-shot", "best", False, False),
        ("last", "few-shot", "last", False, False),
        ("max", "few-shot", "best", True, True),
    ],
)
def test_what_is_kept_and_which_scores_follow(
    report, selection, kept, measures_every_epoch, is_chosen_on_reported_rows
):
    rule = EpochRule(report, selection)
    assert rule.kept == kept
    assert rule.measures_every_epoch == measures_every_epoch
    assert rule.is_chosen_on_reported_rows == is_chosen_on_reported_rows


@pytest.mark.parametrize("is_best", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_the_reported_rows_are_measured_where_no_later_epoch_can(is_best, is_last):
    """A run that keeps the best epoch can measure it after the training."""

    def measures(report, selection):
        return EpochRule(report, selection).measures_reported_rows(is_best=is_best, is_last=is_last)

    assert measures("best", "validation") and measures("max", "holdout")
    assert measures("best", "holdout") == is_last
    assert measures("last", "holdout") == (is_last or is_best)


@pytest.mark.parametrize(
    ("report", "is_best", "may_be_kept", "keeps"),
    [
        ("best", True, True, True),
        ("best", False, True, False),
        ("max", False, True, False),
        ("last", False, True, True),
        ("last", False, False, False),
    ],
)
def test_the_model_of_an_epoch_is_kept(report, is_best, may_be_kept, keeps):
    rule = EpochRule(report, "validation")
    assert rule.keeps(is_best=is_best, may_be_kept=may_be_kept) == keeps


def test_a_configuration_has_the_rule_of_its_selection(make):
    assert make("bitfit", "selection=holdout").epoch_rule == EpochRule("best", "holdout")
    assert make("bitfit", "shots=4", "report=last").epoch_rule == EpochRule("last", "few-shot")
