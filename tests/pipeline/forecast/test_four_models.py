"""What the four networks take: the table that is often shown, and what stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.four_models import BYTES, parameters_of
from pipeline.forecast.shapes import shape_of
from pipeline.models.loading import scratch_config


def test_bytes_of_a_parameter() -> None:
    """Seven billion parameters are 84 GB by the assumptions of the table that is often shown."""
    assert 7 * sum(next(iter(BYTES.values()))) == 84
    assert [*BYTES.values()] == [
        pytest.approx(each)
        for each in (
            (4, 2, 4, 2), (16, 2, 16, 2), (16, 4, 16, 4), (16, 2, 0, 2),
            (2.16, 0, 2.16, 2), (0.676, 0, 1.16, 2), (0.676, 0, 0, 2),
        )
    ]  # fmt: skip


def test_a_size_or_a_model_is_counted(tmp_path: Path) -> None:
    sizes = {size: parameters_of(size) for size in ("7B", "0.5b", "350M", "1.3B")}
    assert sizes == {"7B": 7e9, "0.5b": 5e8, "350M": 3.5e8, "1.3B": 1.3e9}
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
    ):
        assert run.invoke(ablate.app, arguments).exit_code == 2
