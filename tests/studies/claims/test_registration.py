from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_trial import STUDY, calls, control
from light_study import SMALL, Write, go
from typer.testing import CliRunner

from ablate import app
from pipeline.errors import Damaged, UserError
from pipeline.run.layout import Layout, StudyFolder
from studies.claims.badges import Standing, standing
from studies.claims.registration import read_chain
from studies.definition.schema import Study

TEXT = f"""{STUDY}hypotheses:
  - {{name: wins, claim: it wins, metric: eval/win_rate, contrast: strong - weak, expect: higher}}
"""
HIGHER = TEXT.replace("threshold: 0.5", "threshold: 0.6")
EARLY = "registered before the data"
NONE_LATER = f"{EARLY}: arm none added later"

pytestmark = pytest.mark.usefixtures("no_mlflow")


def folder_of(layout: Layout) -> StudyFolder:
    return layout.study("small", "tiny")


def badges(study: Study, layout: Layout) -> Standing:
    return standing(study, layout.study(study.name, "tiny"), "tiny", SMALL)


def texts(study: Study, layout: Layout) -> tuple[str, str, str]:
    found = badges(study, layout)
    return str(found.hypothesis), str(found.hypotheses["wins"]), str(found.falsifiers["drift"])


def with_none(beta: float = 0.0, text: str = TEXT) -> str:
    return text.replace("strong: {kl.beta: 0.2}", f"strong: {{kl.beta: 0.2}}\n  none: {{kl.beta: {beta}}}")


def stop_at_once(study: Study, layout: Layout, cell: str = "0.01/0") -> None:
    """Start a study that ends before the first trial that has yet to run does."""
    layout.root.mkdir(parents=True, exist_ok=True)
    control(layout, user_error=[cell])
    with pytest.raises(UserError, match="is too large"):
        go(study, layout)
    control(layout)


def test_the_first_start_registers_and_a_rerun_adds_nothing(write_study: Write, layout: Layout) -> None:
    study = write_study(TEXT)
    assert str(badges(study, layout).falsifiers["drift"]) == "not yet registered: the first trial registers it"
    go(study, layout)
    (line,) = read_chain(folder_of(layout))
    assert (line.ended, line.commit) == (0, "unknown")
    assert line.content["overrides"] == SMALL
    assert line.content["falsifiers"]["drift"]["speaks_of"] == ["weak", "strong"]
    assert (line.content["seeds"], line.content["hypothesis"]) == ([0, 1], "It does.")
    go(study, layout)
    assert len(read_chain(folder_of(layout))) == 1
    assert texts(study, layout) == (EARLY, EARLY, EARLY)


def test_a_change_is_visible_before_and_after_the_next_start(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    amended = "amended after 4 trials: threshold 0.5 -> 0.6"
    for run in (False, True):
        if run:
            go(write_study(HIGHER), layout)
        assert texts(write_study(HIGHER), layout) == (EARLY, EARLY, amended)
    assert [line.ended for line in read_chain(folder_of(layout))] == [0, 4]
    assert texts(write_study(TEXT), layout)[2] == EARLY


@pytest.mark.parametrize(
    ("old", "new", "claim", "difference"),
    [
        ("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.3}", "drift", "settings strong kl.beta 0.2 -> 0.3"),
        ("strong - weak", "weak - strong", "wins", "contrast strong 1.0 -> -1.0; contrast weak -1.0 -> 1.0"),
        ("hypothesis: It does.", "hypothesis: It did.", "", "hypothesis It does. -> It did."),
        ("seeds: [0, 1]", "seeds: [0, 1]\nvary: [sft]", "wins", "vary none -> sft"),
        ("before_step: 32", "before_step: 32, relative_to: baseline", "drift", "relative_to none -> baseline"),
    ],
)
def test_what_counts_as_a_change(
    write_study: Write, layout: Layout, old: str, new: str, claim: str, difference: str
) -> None:
    go(write_study(TEXT), layout)
    assert old in TEXT
    found = badges(write_study(TEXT.replace(old, new)), layout)
    badge = found.badges()[claim] if claim else found.hypothesis
    assert badge.state == "amended"
    assert difference in str(badge)


# --- results that were known -------------------------------------------------------------------------------


def test_claims_on_trials_that_another_study_has_run_are_late(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT.replace("seeds: [0, 1]", "seeds: [1]")), layout)
    other = write_study(TEXT.replace("before_step: 32", "before_step: 32, arms: [strong]"), "other")
    go(other, layout)
    assert len(calls(layout)) == 4, "two trials came from the store"
    sentence, _, drift = texts(other, layout)
    assert sentence == "registered after part of the data (2 of 4 trials had finished)"
    assert drift == "registered after part of the data (1 of 2 trials had finished)"


def test_claims_are_early_where_another_study_runs_the_trials_later(write_study: Write, layout: Layout) -> None:
    other = write_study(TEXT, "other")
    stop_at_once(other, layout)
    go(write_study(TEXT), layout)
    go(other, layout)
    assert {badge.state for badge in badges(other, layout).badges().values()} == {"registered"}


def test_a_change_before_any_trial_has_ended_counts_as_registered(write_study: Write, layout: Layout) -> None:
    stop_at_once(write_study(TEXT), layout)
    for changed in (HIGHER, TEXT.replace("kl.beta: 0.2", "kl.beta: 0.3")):
        assert texts(write_study(changed), layout)[2] == "registered with the next start"
    go(write_study(HIGHER), layout)
    assert [line.ended for line in read_chain(folder_of(layout))] == [0, 0]
    assert texts(write_study(HIGHER), layout)[2] == EARLY


# --- arms and claims that come later -----------------------------------------------------------------------


def test_an_added_arm_amends_no_claim_unless_it_changes_after_its_trials(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    assert texts(write_study(with_none()), layout) == (NONE_LATER, EARLY, NONE_LATER)
    go(write_study(with_none(0.3)), layout)
    assert texts(write_study(with_none(0.3)), layout) == (NONE_LATER, EARLY, NONE_LATER)
    text = "amended after 6 trials: settings none kl.beta 0.3 -> 0.7"
    for run in (False, True):
        if run:
            go(write_study(with_none(0.7)), layout)
        assert texts(write_study(with_none(0.7)), layout) == (text, EARLY, text)


# --- the chain ---------------------------------------------------------------------------------------------


def test_removed_records_do_not_make_a_claim_fresh(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    for path in folder_of(layout).trial_files():
        path.unlink()
    go(write_study(HIGHER), layout)
    assert str(badges(write_study(HIGHER), layout).falsifiers["drift"]).startswith("registered after the data")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda lines: [lines[0].replace("0.5", "0.7"), lines[1]], "it is not what was registered"),
        (lambda lines: [lines[0], lines[1].replace('"ended":4', '"ended":3')], "it is not what was registered"),
        (lambda lines: lines[:1], "it is not what was registered"),
        (lambda lines: [*lines, "{}"], "line 3 cannot be read"),
        (lambda lines: None, "no such file"),
    ],
)
def test_a_chain_that_was_edited_or_removed_is_damaged(
    write_study: Write, layout: Layout, edit: Callable[[list[str]], list[str] | None], why: str
) -> None:
    go(write_study(TEXT), layout)
    go(write_study(HIGHER), layout)
    path = folder_of(layout).registration_file
    edited = edit(path.read_text().splitlines())
    path.unlink()
    if edited is not None:
        path.write_text("".join(f"{line}\n" for line in edited))
    with pytest.raises(Damaged) as error:
        badges(write_study(HIGHER), layout)
    assert error.value.why.startswith(why)
    _, text = go(write_study(HIGHER), layout)
    assert f"registration.jsonl is damaged: {why}" in text
    (line,) = read_chain(folder_of(layout))
    assert line.ended == 4
    assert badges(write_study(HIGHER), layout).falsifiers["drift"].state == "exploratory"


def test_falsify_refuses_a_damaged_chain(write_study: Write, layout: Layout) -> None:
    go(write_study(), layout)
    path = folder_of(layout).registration_file
    path.write_text(path.read_text().replace("0.5", "0.6"))
    done = CliRunner().invoke(app, ["falsify", write_study().source, "--out", str(layout.root)])
    assert (done.exit_code, "registration.jsonl is damaged: it is not what" in done.stderr) == (4, True)
