"""Claims that are written down before the data: the chain, and the badges that follow from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_trial import STUDY
from light_study import SMALL, go

from pipeline.errors import Damaged, Gone, UserError
from pipeline.run.layout import Layout, StudyFolder
from studies.claims.badges import Standing, standing
from studies.claims.registration import content_of, read_chain
from studies.definition.schema import Study, single

ROOT = Path(__file__).parents[3]
TEXT = f"""{STUDY}hypotheses:
  - {{name: wins, claim: it wins, metric: eval/win_rate, contrast: strong - weak, expect: higher}}
"""

pytestmark = pytest.mark.usefixtures("no_mlflow")
Write = Callable[..., Study]


def folder_of(layout: Layout) -> StudyFolder:
    return layout.study("small", "tiny")


def badges(study: Study, layout: Layout) -> Standing:
    return standing(study, folder_of(layout), "tiny", SMALL)


def falsify(study: Study, layout: Layout) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ablate.py"), "falsify", study.source, "--out", str(layout.root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_first_start_registers_and_a_rerun_adds_nothing(write_study: Write, layout: Layout) -> None:
    study = write_study(TEXT)
    assert str(badges(study, layout).falsifiers["drift"]) == "not yet registered: the first trial registers it"
    go(study, layout)
    (line,) = read_chain(folder_of(layout))
    assert (line.kind, line.ended, line.begun, line.commit) == ("registered", 0, 0, "unknown")
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
    assert [(line.kind, line.ended, line.begun) for line in read_chain(folder_of(layout))] == [
        ("registered", 0, 0),
        ("amended", 4, 4),
    ]
    assert str(badges(changed, layout).falsifiers["drift"]) == wanted
    more = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6").replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    go(more, layout)
    assert str(badges(more, layout).falsifiers["drift"]) == (
        "amended after 4 trials: threshold 0.5 -> 0.6; seeds 0, 1 -> 0, 1, 2"
    )
    assert str(badges(more, layout).hypotheses["wins"]) == "amended after 4 trials: seeds 0, 1 -> 0, 1, 2"
    assert badges(write_study(TEXT), layout).falsifiers["drift"].state == "registered"


@pytest.mark.parametrize(
    ("old", "new", "claim", "difference"),
    [
        ("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.3}", "drift", "settings strong kl.beta 0.2 -> 0.3"),
        ("before_step: 32", "before_step: 32, arms: [weak]", "drift", "arms * -> weak; speaks_of weak, strong -> weak"),
        ("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.2}\n  none: {kl.beta: 0.0}", "drift", "weak, strong, none"),
        ("expect: higher", "expect: lower", "wins", "expect higher -> lower"),
        ("strong - weak", "weak - strong", "wins", "contrast strong 1.0 -> -1.0; contrast weak -1.0 -> 1.0"),
        ("expect: higher", "expect: higher, margin: 0.05", "wins", "margin 0.0 -> 0.05"),
        ("hypothesis: It does.", "hypothesis: It did.", "", "hypothesis It does. -> It did."),
        ("baseline: weak", "baseline: strong", "", "baseline weak -> strong"),
    ],
)
def test_what_counts_as_a_change(
    write_study: Write, layout: Layout, old: str, new: str, claim: str, difference: str
) -> None:
    go(write_study(TEXT), layout)
    assert old in TEXT
    said = badges(write_study(TEXT.replace(old, new)), layout)
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


RELATIVE = TEXT.replace("before_step: 32", "before_step: 32, relative_to: baseline")


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("relative_to: baseline", "relative_to: baseline, relative: ratio", "relative difference -> ratio"),
        (", relative_to: baseline", "", "relative_to baseline -> none"),
        ("weak: {kl.beta: 0.01}", "weak: {kl.beta: 0.02}", "settings weak kl.beta 0.01 -> 0.02"),
        ("baseline: weak", "baseline: strong", "baseline weak -> strong"),
    ],
)
def test_a_relative_claim_depends_on_the_baseline(
    write_study: Write, layout: Layout, old: str, new: str, difference: str
) -> None:
    go(write_study(RELATIVE), layout)
    assert badges(write_study(RELATIVE), layout).falsifiers["drift"].state == "registered"
    badge = badges(write_study(RELATIVE.replace(old, new)), layout).falsifiers["drift"]
    assert badge.state == "amended"
    assert difference in str(badge)


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
    assert badges(study, layout).falsifiers["drift"].state == "registered"
    go(study, layout)
    assert [line.ended for line in read_chain(folder_of(layout))] == [0, 0]
    badge = badges(study, layout).falsifiers["drift"]
    assert (badge.state, str(badge)) == ("registered", "registered before the data: 1 trial had begun")


def test_studies_that_ran_before_or_elsewhere_are_exploratory(write_study: Write, layout: Layout) -> None:
    study, folder = write_study(TEXT), folder_of(layout)
    go(study, layout)
    folder.registration_file.unlink()
    content = json.loads(folder.study_file.read_text())
    folder.study_file.write_text(
        json.dumps({key: value for key, value in content.items() if key not in ("registration", "content_sha256")})
    )
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
        (lambda lines: [lines[0].replace("0.5", "0.7"), lines[1]], "line 1: it has changed since it was written"),
        (lambda lines: [lines[0], lines[1].replace('"ended":4', '"ended":3')], "line 2: it has changed"),
        (lambda lines: lines[1:], "line 1: it does not follow the line before it"),
        (lambda lines: lines[::-1], "line 1: it does not follow"),
        (lambda lines: lines[:1], "its last lines, which study.json knows of, are missing"),
        (lambda lines: [*lines, "{}"], "line 3: it is not a line of a registration"),
        (lambda lines: [lines[0], lines[1][:-20]], "line 2: it is not a line of a registration"),
    ],
)
def test_a_chain_that_was_edited_is_damaged(
    write_study: Write, layout: Layout, edit: Callable[[list[str]], list[str]], why: str
) -> None:
    go(write_study(TEXT), layout)
    changed = write_study(TEXT.replace("threshold: 0.5", "threshold: 0.6"))
    go(changed, layout)
    path = folder_of(layout).registration_file
    path.write_text("".join(f"{line}\n" for line in edit(path.read_text().splitlines())))
    with pytest.raises(Damaged, match=why):
        badges(changed, layout)
    _, text = go(changed, layout)
    assert f"registration.jsonl is damaged: {why}" in text
    (line,) = read_chain(folder_of(layout))
    assert line.ended == 4
    assert badges(changed, layout).falsifiers["drift"].state == "exploratory"


def test_a_chain_that_was_removed_is_missed(write_study: Write, layout: Layout) -> None:
    study = write_study(TEXT)
    go(study, layout)
    folder_of(layout).registration_file.unlink()
    with pytest.raises(Gone):
        badges(study, layout)
    _, text = go(study, layout)
    assert "claims are registered again, after the data that there are" in text
    assert badges(study, layout).falsifiers["drift"].state == "exploratory"


def test_falsify_shows_the_badges_and_refuses_a_damaged_chain(write_study: Write, layout: Layout) -> None:
    go(write_study(), layout)
    done = falsify(write_study(STUDY.replace("threshold: 0.5", "threshold: 0.6")), layout)
    assert "before step 32; amended after 4 trials: threshold 0.5 -> 0.6" in done.stdout
    assert (done.returncode, "Hypothesis: registered before the data" in done.stdout) == (0, True)
    path = folder_of(layout).registration_file
    path.write_text(path.read_text().replace("0.5", "0.6"))
    done = falsify(write_study(), layout)
    assert done.returncode == 4
    assert "registration.jsonl is damaged: line 1: it has changed since it was written" in done.stderr
