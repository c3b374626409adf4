"""What the four networks take: the table that is often shown, and what stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.four_models import ADAM, Assumptions, Recipe, parameters_of, recipes
from pipeline.forecast.policy_shape import shape_of
from pipeline.models.loading import scratch_config


def gigabytes(recipe: Recipe, parameters: float) -> tuple[float, ...]:
    """In 10^9 bytes, as tables of others have it."""
    return tuple(size * 2**30 / 1e9 for size in recipe.gib(parameters))


def test_seven_billion_parameters_are_84_gb_by_the_assumptions_of_the_table() -> None:
    assert gigabytes(recipes(Assumptions())[0], parameters_of("7B")) == pytest.approx((28.0, 14.0, 28.0, 14.0, 84.0))


def test_what_adam_needs_is_told_beside_it() -> None:
    _, masters, whole, no_critic, lora, few_bits, least = (gigabytes(one, 7e9) for one in recipes(Assumptions()))
    assert masters == pytest.approx((112.0, 14.0, 112.0, 14.0, 252.0))
    assert whole == pytest.approx((112.0, 28.0, 112.0, 28.0, 280.0))
    assert no_critic == pytest.approx((112.0, 14.0, 0.0, 14.0, 140.0))
    assert lora[-1] == pytest.approx(2 * 7 * (2 + 0.01 * ADAM) + 14)
    assert few_bits[:3] == pytest.approx((7 * (0.516 + 0.16), 0.0, 7 * (1 + 0.16)))
    assert least[-1] == pytest.approx(few_bits[-1] - few_bits[2])


def test_the_assumptions_are_the_users() -> None:
    first, *others = recipes(Assumptions(trained=6.0, frozen=1.0, adapter_share=0.02))
    assert gigabytes(first, 1e9) == pytest.approx((6.0, 1.0, 6.0, 1.0, 14.0))
    assert gigabytes(others[3], 1e9)[0] == pytest.approx(2 + 0.32)


@pytest.mark.parametrize(("size", "parameters"), [("7B", 7e9), ("0.5b", 5e8), ("350M", 3.5e8), ("1.3B", 1.3e9)])
def test_sizes(size: str, parameters: float) -> None:
    assert parameters_of(size) == parameters


def test_a_model_is_counted(tmp_path: Path) -> None:
    tiny = load_config("tiny", {})
    shape = shape_of(tiny)
    assert shape is not None
    scratch_config(tiny.model, tiny.data.vocab_size, 0, 1, 1024).save_pretrained(tmp_path)
    assert parameters_of(str(tmp_path)) == shape.parameters
    assert parameters_of("Qwen/Qwen1.5-0.5B") == pytest.approx(464e6, rel=0.01)


@pytest.mark.parametrize("model", ["7X", "", "7", "-7B", "0B", "B"])
def test_what_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="is neither a size such as 7B or 350M nor a model"):
        parameters_of(model)


def test_the_command() -> None:
    import ablate

    run = CliRunner()
    shown = run.invoke(ablate.app, ["plan", "--memory", "7B"], env={"COLUMNS": "150"})
    assert shown.exit_code == 0
    assert "4 bytes a trained parameter, 2 a frozen one" in shown.output
    assert shown.output.splitlines()[1].split()[-5:] == ["26.1", "13", "26.1", "13", "78.2"]
    for arguments in (
        ["plan"],
        ["plan", "kl_ablation", "--memory", "7B"],
        ["plan", "--memory", "7B", "--profile", "tiny"],
        ["plan", "--memory", "7B", "--set", "kl.beta=0.1"],
        ["plan", "kl_ablation", "--frozen-bytes", "1"],
    ):
        assert run.invoke(ablate.app, arguments).exit_code == 2
