"""Every trap that other implementations of PPO fell into, and the test that would notice it here.

The table is checked: a test that is renamed or removed must be replaced in it. A trap whose test had no home yet
stands below the table.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from tinytrial import EOS, PAD, model, trainer

from pipeline.models.loading import pretrained_model
from pipeline.models.out_of_memory import Room
from pipeline.models.sampling import sample
from pipeline.models.seeding import uniforms
from pipeline.run import metrics
from pipeline.run.metrics_log import MetricsLog
from studies.definition.space import Prune

TESTS = Path(__file__).parents[2]

LAWS, LOSSES, SHAPING, MASKING = (
    f"pipeline/algorithms/mathematics/test_{name}.py::test_" for name in ("laws", "losses", "shaping", "masking")
)
TRAINER, PARTS, METRICS, HEALTH, RESUME = (
    f"pipeline/training/test_{name}.py::test_" for name in ("trainer", "parts", "metrics", "health", "resume")
)
HERE, POLICY = "pipeline/algorithms/test_traps.py::test_", "pipeline/models/test_policy.py::test_"
TRAPS: dict[str, list[str]] = {
    "padding in metrics": [
        LAWS + "pad_columns_change_nothing",
        METRICS + "pad_columns_move_no_metric_of_a_rollout_and_reach_no_loss",
        POLICY + "padding_changes_nothing",
        HEALTH + "a_network_that_sees_padding_is_found",
    ],
    "entropy below 0 from padding sentinels": [TRAINER + "the_first_step_sees_the_behaviour_policy_itself"],
    "mean of means over micro-batches": [
        LOSSES + "a_mean_of_micro_batch_means_would_be_another_loss",
        MASKING + "the_mean_is_over_tokens_and_not_over_rows",
        TRAINER + "memory_settings_change_nothing",
        TRAINER + "the_gradient_is_that_of_the_mean_over_the_mini_batch_tokens",
    ],
    "whitening without the mask": [MASKING + "whitening_by_hand", LAWS + "pad_columns_change_nothing"],
    "whitening with the mean added back": [MASKING + "moments_and_whitening_against_plain_loops"],
    "behaviour log-probs taken from generation": [
        TRAINER + "without_a_learning_rate_nothing_moves_whatever_the_settings",
        HEALTH + "a_first_step_that_is_off_policy_is_found",
    ],
    "a truncated distribution makes KL negative": [
        HEALTH + "a_trial_with_truncated_sampling_is_stopped_at_its_first_rollout",
        HEALTH + "negative_kl_warns_beyond_noise_only",
    ],
    "position ids that differ between rollout and loss": [
        TRAINER + "without_a_learning_rate_nothing_moves_whatever_the_settings",
        POLICY + "positions_ignore_left_padding",
        POLICY + "a_sampled_token_is_the_inverse_cdf_of_the_training_distribution",
    ],
    "reward on the pad after EOS": [
        SHAPING + "the_score_on_the_last_token_and_not_behind_it",
        SHAPING + "score_by_hand_on_the_last_valid_token",
    ],
    "EOS looked for in the prompt": [HERE + "eos_in_the_prompt_ends_no_response"],
    "masks made from the pad token": [POLICY + "pad_may_equal_eos"],
    "a knob that is accepted and ignored": [
        TRAINER + "every_declared_knob_is_covered_below",
        TRAINER + "every_knob_changes_the_trajectory",
    ],
    "beta, guard, optimiser or sampler position lost on resume": [
        RESUME + "killed_and_resumed_equals_uninterrupted",
        PARTS + "what_parts_keep_survives_a_checkpoint_and_a_held_policy_moves_the_guard_alone",
    ],
    "the loss scaler lost on resume": [HERE + "the_loss_scaler_survives_a_resume"],
    "an adaptive beta that turns negative": [
        "pipeline/algorithms/mathematics/test_controllers.py::test_a_horizon_that_would_turn_it_negative_is_refused"
    ],
    "the last mini-batch logged as the update's value": [  # one row a step, each its own
        TRAINER + "the_first_step_sees_the_behaviour_policy_itself",
        METRICS + "rollout_metrics_by_hand",
        "reports/figures/test_figures.py::test_long_series_are_averaged_by_cells",
    ],
    "one name for two definitions": [
        HERE + "every_metric_has_one_definition_and_a_unit",
        "pipeline/run/test_metrics_log.py::test_only_metrics_on_the_list",
        "pipeline/stages/test_stages.py::test_metrics_are_the_declared_ones_and_within_their_bounds",
    ],
    "k1 in the loss, whose gradient is nothing": [LOSSES + "gradients_of_the_estimators_in_expectation"],
    "trials unseeded": [
        TRAINER + "same_seed_same_bytes",
        "studies/definition/test_study.py::test_cells_pair_seeds_and_put_overrides_below_arms",
    ],
    "trials pruned on one noisy curve": [HERE + "only_a_ceiling_on_the_divergence_prunes"],
    "tuned winners that do not reproduce": [
        "studies/execution/test_search.py::test_a_search_runs_its_trials_and_confirms_the_best_on_fresh_seeds",
        # confirmation seeds that the search has seen
        "studies/definition/test_faults.py::test_a_fault_is_reported_in_one_line",
    ],
    "fp16 weights in the optimiser": [HERE + "weights_stored_in_fp16_are_trained_in_fp32"],
    "an objective that is NaN makes a trial vanish": [
        "studies/execution/test_study.py::test_a_diverged_trial_counts_as_the_worst",
        "studies/execution/test_search.py::test_what_makes_a_trial_infeasible",
        TRAINER + "numbers_that_are_not_finite_end_the_trial_as_diverged_with_good_weights",
    ],
}


@cache
def names(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_has_its_test(trap: str) -> None:
    for test in TRAPS[trap]:
        path, _, name = test.partition("::")
        assert name in names(path), f"{trap}: {test} is gone; name the test that notices this trap now"


def test_eos_in_the_prompt_ends_no_response() -> None:
    """Templates of chat models put it there; some prompts here are nothing else."""
    queries = torch.tensor([[EOS, 5, 6], [EOS, EOS, EOS], [PAD, EOS, 7], [9, 8, EOS]]).repeat(4, 1)
    episodes = sample(
        model(),
        queries,
        queries != PAD,
        uniforms(16, 20, "prompt"),
        eos_id=EOS,
        pad_id=PAD,
        temperature=1.0,
        room=Room("rows", 16),
    )
    rows = episodes.responses.tolist()
    assert episodes.lengths.tolist() == [row.index(EOS) + 1 if EOS in row else 20 for row in rows]
    assert episodes.ended.tolist() == [EOS in row for row in rows]
    assert len(set(episodes.ended.tolist())) == 2  # both kinds were seen


def test_the_loss_scaler_survives_a_resume(tmp_path: Path) -> None:
    """Without its state, fp16 training after a resume starts again at the largest scale and skips steps."""
    before, after = trainer(tmp_path), trainer(tmp_path)
    for one, scale in ((before, 8.0), (after, 2.0)):
        one.state.steps.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    before.checkpoints.log = MetricsLog(tmp_path / "metrics.jsonl")
    before.checkpoints.save()
    after.checkpoints.resume()
    assert after.state.steps.scaler.get_scale() == 8.0
    for one in (before, after):
        one.checkpoints.log.close()


def test_only_a_ceiling_on_the_divergence_prunes() -> None:
    kl_alone = {"objective/kl", "objective/kl_per_token", "objective/kl_exact_per_token", "objective/kl_k3_per_token"}
    for key in metrics.METRICS:
        if key in kl_alone:
            assert Prune(metric=key, above=1.0).rule.op == ">"  # type: ignore[arg-type]
        else:
            with pytest.raises(ValidationError, match="Input should be"):
                Prune(metric=key, above=1.0)  # type: ignore[arg-type]


def test_every_metric_has_one_definition_and_a_unit() -> None:
    keys = [metric.key for metric in metrics._ROWS]
    assert len(keys) == len(set(keys)) == len(metrics.METRICS) + len(metrics.FAMILIES)
    assert all(metric.unit.strip() and metric.formula.strip() for metric in metrics._ROWS)
    for metric in metrics._ROWS:
        for words in ("per_token", "per_sequence"):
            assert words not in metric.key or metric.unit == f"nats {words.replace('_', ' ')}", metric.key


def test_weights_stored_in_fp16_are_trained_in_fp32(tmp_path: Path) -> None:
    """A step of 1e-5 on a weight of 1 is nothing in fp16, and Adam's squares underflow to 0."""
    model().half().save_pretrained(tmp_path / "half")
    loaded = pretrained_model(str(tmp_path / "half"), None)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    one = trainer(tmp_path / "trial", critic__kind="separate")
    trained = [parameter for group in one.state.steps.optimiser.param_groups for parameter in group["params"]]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    one.run()
    states = [
        value for state in one.state.steps.optimiser.state.values() for name, value in state.items() if name != "step"
    ]
    assert {value.dtype for value in states} == {torch.float32}
