"""What TRL's GRPO and RLOO trainers compute on seeded tensors, saved for `test_trl_groups.py`.

TRL 1.16 and the version that this project pins cannot share an environment; it gets one of its own, in two commands:

    python3 -m venv ENV && ENV/bin/pip install torch==2.13.0
    ENV/bin/pip install trl==1.16.0

`ENV/bin/python tests/crosscheck/trl_golden.py tests/crosscheck/trl_golden.safetensors` then writes the file again, with
the versions and the settings of every case in its metadata. Nothing of this project is imported.

Generation and the network are replaced by tables, since they are what surrounds the mathematics: responses of given
lengths, and log-probs of three policies in float64. Rewards, advantages, losses and their gradients are TRL's own.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

RESPONSES, EACH, WIDTH, LONGEST = 16, 4, 7, 9
"""Responses of a rollout, to one prompt, tokens of the longest one, and tokens that one can have."""
LENGTHS = (7, 1, 4, 2, 6, 3, 5, 7, 1, 2, 7, 6, 5, 4, 3, 2)
SPREADS = (0.4, 1e-4, 0.9, 0.01, 0.5, 0.15, 0.7, 2e-3)
"""Standard deviations of the drift of a response's log-probs since the rollout: some ratios are clipped, some not."""
MINI_BATCHES = ((0, 4, 10, 15, 3, 6, 9, 12), (1, 14, 8, 2, 5, 11, 7, 13))
"""Rows of each: the responses to a prompt are spread over both, as they are after a shuffle."""
PUNISHED, CACHE = 20, 4
"""DAPO's penalty on overlong responses: where it is full, and over how many tokens it grows."""


@dataclass(frozen=True)
class Case:
    """Settings of TRL."""

    method: str
    settings: dict[str, Any]
    responses: int = EACH
    """To one prompt."""
    micro_batches: int = 1
    """Of a mini-batch."""
    losses: bool = True
    """Whether losses are of interest, beside advantages."""
    all_settings: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        size = len(MINI_BATCHES[0]) // self.micro_batches
        fixed = {
            "num_generations": self.responses,
            "max_completion_length": LONGEST,
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": self.micro_batches,
            "generation_batch_size": RESPONSES,
            "num_iterations": 2,
        }
        object.__setattr__(self, "all_settings", fixed | self.settings)


def grpo(**settings: Any) -> Case:
    """Settings of GRPO; the KL estimator is k3 without a ratio unless it is asked for."""
    return Case("grpo", {"beta": 0.3, "loss_type": "grpo", "use_bias_correction_kl": False, **settings})


TOKENS = {"loss_type": "bnpo"}
CASES = {
    "grpo": grpo(),
    "grpo_ratio_k3": grpo(use_bias_correction_kl=True),
    "grpo_no_kl": grpo(beta=0.0),
    "grpo_two_sided": grpo(delta=1.3),
    "grpo_entropy": grpo(entropy_coef=0.2),
    "dr_grpo": grpo(loss_type="dr_grpo", scale_rewards="none"),
    "lite_ppo": grpo(scale_rewards="batch", **TOKENS),
    "lite_ppo_entropy": grpo(scale_rewards="batch", entropy_coef=0.2, **TOKENS),
    "gspo": grpo(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    "gspo_wide": grpo(importance_sampling_level="sequence", epsilon=0.01, epsilon_high=0.02),
    "gspo_ratio_k3": grpo(importance_sampling_level="sequence", epsilon=0.01, use_bias_correction_kl=True),
    "cispo": grpo(loss_type="cispo", epsilon_high=2.0),
    "dapo": grpo(loss_type="dapo", epsilon_high=0.28),
    "dapo_own_tokens": grpo(epsilon_high=0.28, **TOKENS),
    "micro_batches": Case("grpo", grpo(beta=0.0, **TOKENS).settings, micro_batches=2),
    "pairs": Case("grpo", grpo().settings, responses=2, losses=False),
    "rloo": Case("rloo", {"beta": 0.3}),
    "rloo_no_kl": Case("rloo", {"beta": 0.0}),
    "rloo_high": Case("rloo", {"beta": 0.3, "epsilon_high": 3.0}),
    "rloo_whitened": Case("rloo", {"beta": 0.3, "normalize_advantages": True}),
    "rloo_pairs": Case("rloo", {"beta": 0.3}, responses=2, losses=False),
}


@dataclass(frozen=True)
class Tables:
    """What takes the place of generation and the network; by row of the rollout."""

    old: Tensor
    """(B, T) float64, nats; of the policy that sampled. Arbitrary behind the end of a response, as the next three."""
    new: Tensor
    ref: Tensor
    entropies: Tensor
    scores: Tensor
    """(B,) float32."""

    @classmethod
    def drawn(cls) -> Tables:
        """From a seed. The responses to the second prompt have equal scores."""
        numbers = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=numbers, dtype=torch.float64)

        grid = (RESPONSES, WIDTH)
        old = -1 - normal(*grid).abs()
        spreads = torch.tensor(SPREADS, dtype=torch.float64).repeat(RESPONSES // len(SPREADS)).unsqueeze(1)
        scores = normal(RESPONSES).float()
        scores[EACH : 2 * EACH] = 0.75
        return cls(old, old + spreads * normal(*grid), old + 0.2 * normal(*grid), normal(*grid).abs(), scores)


def trainer_of(case: Case, tables: Tables, new: Tensor, folder: Path) -> Any:
    """TRL's trainer; its network returns `new` (B, T) in the loss, and the tables elsewhere."""
    config, trainer_class = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[case.method]
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({str(index): index for index in range(32)}, unk_token="0"))
    )
    words.pad_token, words.eos_token = "30", "31"

    def score(prompts: list[str], **_: Any) -> list[float]:
        return [float(tables.scores[int(prompt)]) for prompt in prompts]

    trainer = trainer_class(
        model=Qwen2ForCausalLM.from_pretrained(folder),
        reward_funcs=score,
        args=config(
            output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False,
            **case.all_settings,
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(row) for row in range(RESPONSES)]}),
        processing_class=words,
    )  # fmt: skip

    def generate(prompts: list[str]) -> tuple[Any, ...]:
        rows = [int(prompt) for prompt in prompts]
        prompt_ids, responses = [[row] for row in rows], [[29] * LENGTHS[row] for row in rows]
        if case.method == "rloo":
            return prompt_ids, responses, [""] * len(rows)
        return prompt_ids, responses, None, [""] * len(rows), None, {}, None, []

    def forward(model: Any, ids: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor | None, None]:
        rows = ids[:, 0]  # a prompt is the number of its row
        if options.get("compute_entropy"):
            return new[rows], tables.entropies[rows], None
        return (tables.ref if model is trainer.ref_model else tables.old)[rows], None, None

    trainer._generate, trainer._get_per_token_logps_and_entropies = generate, forward
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = case.micro_batches
    return trainer


def computed(case: Case, tables: Tables, folder: Path) -> dict[str, Tensor]:
    """TRL's advantages (B,); of each mini-batch its loss and the share of ratios clipped; the gradient (B, T)."""
    new = tables.new.clone().requires_grad_()
    trainer = trainer_of(case, tables, new, folder)
    rollout = trainer._generate_and_score_completions([{"prompt": str(row)} for row in range(RESPONSES)])
    found = {"advantages": rollout["advantages"]}
    if not case.losses:
        return found
    losses = []
    for mini_batch in MINI_BATCHES:
        loss = torch.zeros((), dtype=torch.float64)
        for rows in torch.tensor(mini_batch).chunk(case.micro_batches):
            inputs = {name: value[rows] if value.dim() else value for name, value in rollout.items()}
            loss = loss + trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        losses.append(loss.detach())
    metrics = trainer._metrics["train"]
    name = "cispo_clip_ratio" if "cispo_clip_ratio" in metrics else "clip_ratio/region_mean"
    clipped = torch.tensor(metrics[name], dtype=torch.float64)
    return {**found, "loss": torch.stack(losses), "gradient": new.grad, "clipped": clipped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    tables = Tables.drawn()
    lengths = torch.tensor(LENGTHS)
    overlong = get_soft_overlong_punishment(PUNISHED, CACHE)([[0] * n for n in range(1, PUNISHED + 1)])
    tensors = {
        **{f"inputs/{name}": value for name, value in vars(tables).items()},
        "inputs/lengths": lengths,
        "inputs/mini_batches": torch.tensor(MINI_BATCHES),
        "overlong": torch.tensor(overlong, dtype=torch.float64),
    }
    with tempfile.TemporaryDirectory() as folder:
        shape = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
        network = Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2)
        Qwen2ForCausalLM(network).save_pretrained(folder)
        for name, case in CASES.items():
            found = computed(case, tables, Path(folder))
            tensors |= {f"{name}/{key}": value.detach() for key, value in found.items()}
    settings = {name: {"trainer": case.method, **case.all_settings} for name, case in CASES.items()}
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    # One entry, since the order of several is not the same in every run.
    save_file(tensors, out, {"about": json.dumps({**versions, "settings": settings})})
    print(f"{out}: {len(CASES)} cases, {out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
