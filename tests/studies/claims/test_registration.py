"""Claims that are written down before the data: the chain, and the badges that follow from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from fake_trial import STUDY, calls, control
from light_study import SMALL, go
from typer.testing import CliRunner

from ablate import app
from pipeline.errors import Damaged, UserError
from pipeline.run import dag
from pipeline.run.layout import Layout, StudyFolder, read_sealed, sealed
from studies.claims.badges import Standing, standing
from studies.claims.registration import content_of, read_chain, register
from studies.definition.schema import Study, single

TEXT = f"""{STUDY}hypotheses:
  - {{name: wins, claim: it wins, metric: eval/win_rate, contrast: strong - weak, expect: higher}}
"""

pytestmark = pytest.mark.usefixtures("no_mlflow")
Write = Callable[..., Study]


def folder_of(layout: Layout) -> StudyFolder:
    return layout.study("small", "tiny")


def badges(study: Study, layout: Layout) -> Standing:
    return standing(study, folder_of(layout), "tiny", SMALL)


def falsify(study: Study, layout: Layout) -> Any:
    return CliRunner().invoke(app, ["falsify", study.source, "--out", str(layout.root)])


def test_the_first_start_registers_and_a_rerun_adds_nothing(write_study: Write, layout: Layout) -> None:
    study = write_study(TEXT)
    assert str(badges(study, layout).falsifiers["drift"]) == "not yet registered: the first trial registers it"
    go(study, layout)
    (line,) = read_chain(folder_of(layout))
    assert (line.ended, line.begun, line.commit) == (0, 0, "unknown")
    assert line.content["overrides"] == SMALL
    assert line.content["falsifiers"]["drift"]["speaks_of"] == ["weak", "strong"]
    assert (line.content["seeds"], line.content["hypothesis"]) == ([0, 1], "It does.")
    go(study, layout)
    assert len(read_chain(folder_of(layout))) == 1
    said = badges(study, layout)
    assert {str(badge) for badge in said.badges().values()} == {"registered before the data"}
    assert str(said.hypothesis) == "registered before the data"


def test_a_change_is_visible_before_and_after_the_next_start(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    changed = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6"))
    wanted = "amended after 4 trials: threshold 0.5 -> 0.6"
    assert str(badges(changed, layout).falsifiers["drift"]) == wanted
    assert badges(changed, layout).hypotheses["wins"].state == "registered"
    go(changed, layout)
    assert [(line.ended, line.begun) for line in read_chain(folder_of(layout))] == [(0, 0), (4, 4)]
    assert str(badges(changed, layout).falsifiers["drift"]) == wanted
    more = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6").replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    go(more, layout)
    assert str(badges(more, layout).falsifiers["drift"]) == (
        "amended after 4 trials: threshold 0.5 -> 0.6; seeds 0, 1 -> 0, 1, 2"
    )
    assert str(badges(more, layout).hypotheses["wins"]) == "amended after 4 trials: seeds 0, 1 -> 0, 1, 2"
    assert badges(write_study(TEXT), layout).falsifiers["drift"].state == "registered"


RELATIVE = TEXT.replace("before_step: 32", "before_step: 32, relative_to: baseline")


@pytest.mark.parametrize(
    ("text", "old", "new", "claim", "difference"),
    [
        (TEXT, "strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.3}", "drift", "settings strong kl.beta 0.2 -> 0.3"),
        (TEXT, "before_step: 32", "before_step: 32, arms: [weak]", "drift", "arms * -> weak"),
        (TEXT, "expect: higher", "expect: lower", "wins", "expect higher -> lower"),
        (TEXT, "strong - weak", "weak - strong", "wins", "contrast strong 1.0 -> -1.0; contrast weak -1.0 -> 1.0"),
        (TEXT, "hypothesis: It does.", "hypothesis: It did.", "", "hypothesis It does. -> It did."),
        (TEXT, "baseline: weak", "baseline: strong", "", "baseline weak -> strong"),
        (TEXT, "seeds: [0, 1]", "seeds: [0, 1]\nvary: [sft]", "wins", "vary none -> sft"),
        (RELATIVE, "baseline: weak", "baseline: strong", "drift", "baseline weak -> strong"),
        (RELATIVE, "to: baseline", "to: baseline, relative: ratio", "drift", "relative difference -> ratio"),
        (RELATIVE, ", relative_to: baseline", "", "drift", "relative_to baseline -> none"),
        (RELATIVE, "weak: {kl.beta: 0.01}", "weak: {kl.beta: 0.02}", "drift", "settings weak kl.beta 0.01 -> 0.02"),
    ],
)
def test_what_counts_as_a_change(
    write_study: Write, layout: Layout, text: str, old: str, new: str, claim: str, difference: str
) -> None:
    go(write_study(text), layout)
    assert old in text
    assert {badge.state for badge in badges(write_study(text), layout).badges().values()} == {"registered"}
    said = badges(write_study(text.replace(old, new)), layout)
    badge = said.badges()[claim] if claim else said.hypothesis
    assert badge.state == "amended"
    assert difference in str(badge)


def test_a_claim_is_registered_with_every_key_that_it_has_and_no_other(write_study: Write) -> None:
    """Claims of series keep the content, and so the digest, that they had before falsifiers knew other forms."""
    old = content_of(write_study(TEXT), "tiny", {})["falsifiers"]["drift"]
    assert old == {
        "claim": "it stays",
        "metric": "objective/kl_per_token",
        "op": ">",
        "threshold": 0.5,
        "before_step": 32,
        "aggregation": "any",
        "arms": ["*"],
        "stop": False,
        "speaks_of": ["weak", "strong"],
    }
    relative = write_study(TEXT.replace("before_step: 32", "before_step: 32, relative_to: baseline"))
    new = content_of(relative, "tiny", {})["falsifiers"]["drift"]
    added = {"relative_to": "baseline", "relative": "difference", "baseline": "weak", "speaks_of": ["strong"]}
    assert new == {**old, **added}
    once = write_study(TEXT.replace("objective/kl_per_token", "eval/gold").replace("before_step: 32", "bound: low"))
    new = content_of(once, "tiny", {})["falsifiers"]["drift"]
    assert new == {key: value for key, value in old.items() if key != "before_step"} | {
        "metric": "eval/gold", "bound": "low"
    }  # fmt: skip


def stop_at_once(study: Study, layout: Layout) -> None:
    """Start a study that ends before its first trial does."""
    layout.root.mkdir(parents=True, exist_ok=True)
    control(layout, user_error=["0.01/0"])
    with pytest.raises(UserError, match="is too large"):
        go(study, layout)
    control(layout)


def of_other(study: Study, layout: Layout) -> Standing:
    return standing(study, layout.study("other", "tiny"), "tiny", SMALL)


def test_claims_on_trials_that_another_study_has_run_are_late(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT.replace("seeds: [0, 1]", "seeds: [1]")), layout)
    other = write_study(TEXT.replace("before_step: 32", "before_step: 32, arms: [strong]"), "other")
    go(other, layout)
    assert len(calls(layout)) == 4, "two trials came from the store"
    found = of_other(other, layout)
    assert str(found.hypothesis) == "registered after part of the data (2 of 4 trials had finished)"
    assert str(found.falsifiers["drift"]) == "registered after part of the data (1 of 2 trials had finished)"


@pytest.mark.parametrize("lost", [False, True])
def test_results_of_other_code_are_known(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    go(write_study(TEXT), layout)
    if lost:
        shutil.rmtree(layout.store)
    else:
        monkeypatch.setattr(dag, "code_digest", lambda modules: "edited")
    stopping = TEXT.replace("before_step: 32", "before_step: 32, stop: true").replace("0.2}", "0.3}")
    other = write_study(stopping, "other")
    go(other, layout)
    assert len(calls(layout)) == 8, "all trials ran again"
    text = "registered after part of the data (2 of 4 trials had finished)"
    assert str(of_other(other, layout).falsifiers["drift"]) == text


def test_results_in_the_store_count_before_a_trial_has_a_record(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    other, folder = write_study(TEXT, "other"), layout.study("other", "tiny")
    held = [f"{arm}/{seed}" for arm in ("weak", "strong") for seed in (0, 1)]
    folder.path.mkdir(parents=True)
    register(content_of(other, "tiny", SMALL), folder, "unknown", lambda: (held, 0), pytest.fail)
    text = "registered after the data (4 of 4 trials had finished)"
    assert {str(badge) for badge in of_other(other, layout).badges().values()} == {text}
    edited = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6").replace("wins", "gains"), "other")
    found = of_other(edited, layout).badges()
    assert {(badge.state, str(badge)) for badge in found.values()} == {
        ("unregistered", "registered with the next start")
    }
    go(edited, layout)
    assert {str(badge) for badge in of_other(edited, layout).badges().values()} == {text}


@pytest.mark.parametrize("year", ["1999", "2999"])
def test_results_that_are_in_the_store_are_known_whatever_the_clock_said(
    write_study: Write, layout: Layout, year: str
) -> None:
    go(write_study(TEXT), layout)
    for path in layout.store.glob("*/*/manifest.json"):
        content = read_sealed(path)
        path.write_text(sealed({**content, "finished": year + content["finished"][4:]}))
    other = write_study(TEXT, "other")
    go(other, layout)
    assert of_other(other, layout).falsifiers["drift"].state == "late"


def test_copied_results_count_from_when_they_were_made_not_copied(write_study: Write, layout: Layout) -> None:
    there = Layout(layout.root.parent / "there")
    go(write_study(TEXT), there)
    other = write_study(TEXT, "other")
    stop_at_once(other, layout)
    shutil.copytree(there.store, layout.store, dirs_exist_ok=True, copy_function=shutil.copyfile)
    go(other, layout)
    assert len(calls(layout)) == 1, "none but the trial that ended the first start has run here"
    assert str(of_other(other, layout).falsifiers["drift"]) == "registered after the data (4 of 4 trials had finished)"


def test_an_interrupted_trial_of_another_study_has_begun(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    shutil.rmtree(layout.root / "studies")
    shutil.rmtree(layout.store / "evaluate")
    kept, *others = sorted(path for path in (layout.store / "train").glob("*") if not path.name.startswith("."))
    for path in others:
        shutil.rmtree(path)
    (layout.store / "train" / ".partial").mkdir(exist_ok=True)
    kept.rename(layout.store / "train" / ".partial" / kept.name)
    other = write_study(TEXT, "other")
    go(other, layout)
    assert str(of_other(other, layout).falsifiers["drift"]) == "registered before the data: 1 trial had begun"


def test_claims_are_early_where_another_study_runs_the_trials_later(write_study: Write, layout: Layout) -> None:
    other = write_study(TEXT, "other")
    stop_at_once(other, layout)
    go(write_study(TEXT), layout)
    go(other, layout)
    assert {badge.state for badge in of_other(other, layout).badges().values()} == {"registered"}


def test_an_added_arm_amends_no_claim(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    more = TEXT.replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.2}\n  none: {kl.beta: 0.0}")
    for run in (False, True):
        if run:
            go(write_study(more), layout)
        found = badges(write_study(more), layout)
        assert str(found.hypotheses["wins"]) == "registered before the data"
        assert str(found.hypothesis) == "registered before the data: arm none added later"
        assert str(found.falsifiers["drift"]) == "registered before the data: arm none added later"
    changed = badges(write_study(more.replace("threshold: 0.5", "threshold: 0.6")), layout)
    assert str(changed.falsifiers["drift"]) == "amended after 6 trials: threshold 0.5 -> 0.6"
    fewer = badges(write_study(more.replace("  weak: {kl.beta: 0.01}\n", "").replace("weak", "none")), layout)
    assert {fewer.hypothesis.state, fewer.falsifiers["drift"].state} == {"amended"}


def test_an_added_arm_that_changes_after_its_trials_amends_the_claims(write_study: Write, layout: Layout) -> None:
    def with_none(beta: float) -> Study:
        return write_study(
            TEXT.replace("strong: {kl.beta: 0.2}", f"strong: {{kl.beta: 0.2}}\n  none: {{kl.beta: {beta}}}")
        )

    go(write_study(TEXT), layout)
    control(layout, user_error=["0.0/0"])
    with pytest.raises(UserError):
        go(with_none(0.0), layout)
    control(layout)
    go(with_none(0.3), layout)
    assert str(badges(with_none(0.3), layout).falsifiers["drift"]) == "registered before the data: arm none added later"
    for run in (False, True):
        if run:
            go(with_none(0.5), layout)
            go(with_none(0.7), layout)
        found = badges(with_none(0.7), layout)
        text = "amended after 6 trials: settings none kl.beta 0.3 -> 0.7"
        assert {str(found.falsifiers["drift"]), str(found.hypothesis)} == {text}
        assert str(found.hypotheses["wins"]) == "registered before the data"
    assert badges(with_none(0.3), layout).falsifiers["drift"].state == "registered"


def test_an_added_arm_is_late_where_another_study_has_run_it(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    arm = "\n  none: {kl.beta: 0.0}"
    more = TEXT.replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.2}" + arm)
    go(write_study(more, "other"), layout)
    go(write_study(more), layout)
    found = badges(write_study(more), layout)
    assert str(found.hypotheses["wins"]) == "registered before the data"
    assert str(found.falsifiers["drift"]) == "registered after part of the data (2 of 6 trials had finished)"


def test_what_is_added_or_withdrawn_later(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    study = write_study(TEXT.replace("name: drift", "name: stays"))
    said = badges(study, layout)
    assert str(said.falsifiers["stays"]) == "exploratory (added after 4 trials)"
    assert said.withdrawn == ("drift (it stays), withdrawn after 4 trials",)


def test_a_change_before_any_trial_has_ended_counts_as_registered(write_study: Write, layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    (layout.root / "control.json").write_text('{"user_error": ["0.01/0"]}')
    with pytest.raises(UserError, match="is too large"):
        go(write_study(TEXT), layout)
    (layout.root / "control.json").unlink()
    study = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6"))
    assert str(badges(study, layout).falsifiers["drift"]) == "registered with the next start"
    go(study, layout)
    assert [line.ended for line in read_chain(folder_of(layout))] == [0, 0]
    badge = badges(study, layout).falsifiers["drift"]
    assert (badge.state, str(badge)) == ("registered", "registered before the data: 1 trial had begun")


def test_studies_that_ran_before_or_elsewhere_are_exploratory(write_study: Write, layout: Layout) -> None:
    study, folder = write_study(TEXT), folder_of(layout)
    go(study, layout)
    folder.registration_file.unlink()
    content = {key: value for key, value in folder.started().items() if key != "registration"}
    folder.study_file.write_text(sealed(content))
    assert str(badges(study, layout).falsifiers["drift"]) == "exploratory (run before registration existed)"
    go(study, layout)
    wanted = "exploratory (run before registration existed; registered after 4 trials)"
    assert str(badges(study, layout).falsifiers["drift"]) == wanted
    silent = write_study(STUDY.replace("hypothesis: It does.\nrefuted_if: It does not.\n", ""))
    assert str(badges(silent, layout).hypothesis) == "exploratory (no hypothesis was written down)"
    assert badges(single("tiny", {}, 0), layout).hypothesis.state == "exploratory"


def test_removed_records_do_not_make_a_claim_fresh(write_study: Write, layout: Layout) -> None:
    go(write_study(TEXT), layout)
    for path in folder_of(layout).trial_files():
        path.unlink()
    changed = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6"))
    go(changed, layout)
    assert badges(changed, layout).falsifiers["drift"].state == "amended"


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda lines: [lines[0].replace("0.5", "0.7"), lines[1]], "line 1"),
        (lambda lines: [lines[0], lines[1].replace('"ended":4', '"ended":3')], "line 2"),
        (lambda lines: lines[1:], "line 1"),
        (lambda lines: lines[:1], "its last lines, which study.json knows of, are missing"),
        (lambda lines: [*lines, "{}"], "line 3"),
        (lambda lines: [lines[0], lines[1][:-20]], "line 2"),
        (lambda lines: None, "no such file"),
    ],
)
def test_a_chain_that_was_edited_or_removed_is_damaged(
    write_study: Write, layout: Layout, edit: Callable[[list[str]], list[str] | None], why: str
) -> None:
    go(write_study(TEXT), layout)
    changed = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6"))
    go(changed, layout)
    path = folder_of(layout).registration_file
    edited = edit(path.read_text().splitlines())
    path.unlink()
    if edited is not None:
        path.write_text("".join(f"{line}\n" for line in edited))
    with pytest.raises(Damaged) as error:
        badges(changed, layout)
    assert error.value.why.startswith(why)
    _, text = go(changed, layout)
    assert f"registration.jsonl is damaged: {why}" in text
    (line,) = read_chain(folder_of(layout))
    assert line.ended == 4
    assert badges(changed, layout).falsifiers["drift"].state == "exploratory"


def test_falsify_shows_the_badges_and_refuses_a_damaged_chain(write_study: Write, layout: Layout) -> None:
    go(write_study(), layout)
    done = falsify(write_study(STUDY.replace("threshold: 0.5", "threshold: 0.6")), layout)
    assert "before step 32; amended after 4 trials: threshold 0.5 -> 0.6" in done.stdout
    assert (done.exit_code, "Hypothesis: registered before the data" in done.stdout) == (0, True)
    path = folder_of(layout).registration_file
    path.write_text(path.read_text().replace("0.5", "0.6"))
    done = falsify(write_study(), layout)
    assert done.exit_code == 4
    assert "registration.jsonl is damaged: line 1: it has changed since it was written" in done.stderr
