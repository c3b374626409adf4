"""Results of TRL's GRPO, RLOO and A*-PO trainers on seeded tensors, saved for `test_trl_golden.py`.

TRL 1.16 and the version that this project pins cannot share an environment; it gets one of its own, in two commands:

    python3 -m venv ENV && ENV/bin/pip install torch==2.13.0
    ENV/bin/pip install trl==1.16.0

`ENV/bin/python tests/crosscheck/trl_golden.py tests/crosscheck/trl_golden.safetensors` then writes the file again, with
the versions and the settings of every case in its metadata. Nothing of this project is imported.

Generation and the network are replaced by tables, since they are what surrounds the mathematics: responses of given
lengths, and log-probs of three policies in float64. Rewards, advantages, V*, losses and their gradients are TRL's own.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
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
from trl.experimental.a2po import A2POConfig, A2POTrainer
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
SAMPLES, INCORRECT, CANCELLING = 8, 2, 5
"""Reference samples a prompt; a prompt whose samples all score 0; one whose samples' scores have the sum 0."""
TEXT, PAD, EOS = 29, 30, 31
"""Numbers of tokens."""
TEXTS = [str(row) for row in range(RESPONSES)]


COMMON = {"max_completion_length": LONGEST, "per_device_train_batch_size": len(MINI_BATCHES[0])}
FIXED = {
    **COMMON, "num_generations": EACH, "gradient_accumulation_steps": 1, "generation_batch_size": RESPONSES,
    "num_iterations": 2, "beta": 0.3,
}  # fmt: skip
RLOO = {"trainer": "rloo", **FIXED}
GRPO = {"trainer": "grpo", **FIXED, "loss_type": "grpo", "use_bias_correction_kl": False}
"""The KL estimator is k3 without a ratio."""
A2PO = {"trainer": "a2po", **COMMON, "beta1": 0.5, "beta2": 1e-3, "num_value_samples": SAMPLES,
        "filter_all_incorrect": True}  # fmt: skip
"""TRL's own defaults, which are the published values."""
TOKENS, SEQUENCE = {"loss_type": "bnpo"}, {"importance_sampling_level": "sequence"}
CASES: dict[str, dict[str, Any]] = {
    "grpo": GRPO,
    "grpo_no_kl": GRPO | {"beta": 0.0},
    "grpo_entropy": GRPO | {"entropy_coef": 0.2},
    "dr_grpo": GRPO | {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "lite_ppo": GRPO | TOKENS | {"scale_rewards": "batch"},
    "lite_ppo_entropy": GRPO | TOKENS | {"scale_rewards": "batch", "entropy_coef": 0.2},
    "gspo": GRPO | SEQUENCE | {"epsilon": 3e-4, "epsilon_high": 4e-4},
    "gspo_wide": GRPO | SEQUENCE | {"epsilon": 0.01, "epsilon_high": 0.02},
    "cispo": GRPO | {"loss_type": "cispo", "epsilon_high": 2.0},
    "dapo": GRPO | {"loss_type": "dapo", "epsilon_high": 0.28},
    "dapo_own_tokens": GRPO | TOKENS | {"epsilon_high": 0.28},
    "pairs": GRPO | {"num_generations": 2},
    "rloo": RLOO,
    "rloo_no_kl": RLOO | {"beta": 0.0},
    "rloo_high": RLOO | {"epsilon_high": 3.0},
    "rloo_pairs": RLOO | {"num_generations": 2},
    "a2po": A2PO,
    "a2po_beta1": A2PO | {"beta1": 1.0},
    "a2po_beta2": A2PO | {"beta2": 0.05},
    "a2po_betas": A2PO | {"beta1": 1.0, "beta2": 0.05, "num_value_samples": 5},
}
"""Method and settings of TRL; of the cases of pairs the advantages are compared alone."""
METHODS = {
    "grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer), "a2po": (A2POConfig, A2POTrainer),
}  # fmt: skip


def drawn() -> SimpleNamespace:
    """Numbers in the place of generation and the network, by row of the rollout, from a seed.

    `old`, `new`, `ref`: log-probs (B, T) float64 of the policy that sampled, the new one and the reference, nats, as
    the entropies; arbitrary behind the end of a response. `scores` (B,) and `reference_scores` (B, N) float32, of N
    samples of the reference for the prompt. The responses to the second prompt have equal scores.
    """
    numbers = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers, dtype=torch.float64)

    grid = (RESPONSES, WIDTH)
    old = -1 - normal(*grid).abs()
    spreads = torch.tensor(SPREADS, dtype=torch.float64).repeat(RESPONSES // len(SPREADS)).unsqueeze(1)
    scores = normal(RESPONSES).float()
    scores[EACH : 2 * EACH] = 0.75
    new, ref, entropies = old + spreads * normal(*grid), old + 0.2 * normal(*grid), normal(*grid).abs()
    of_reference = normal(RESPONSES, SAMPLES).float()
    of_reference[INCORRECT] = 0.0
    of_reference[CANCELLING] = torch.tensor([0.5, -0.5, 2.0, -1.0, -1.0, 0.0, 0.25, -0.25])
    return SimpleNamespace(old=old, new=new, ref=ref, entropies=entropies, scores=scores, reference_scores=of_reference)


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is a number, which is also that of its token."""
    model = WordLevel({str(index): index for index in range(32)}, unk_token="0")
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    words.pad_token, words.eos_token = str(PAD), str(EOS)
    return words


def trainer_of(case: dict[str, Any], score: Any, folder: Path) -> Any:
    """TRL's trainer on prompts that are the numbers of their rows."""
    config, trainer_class = METHODS[case["trainer"]]
    plain = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False}
    own = {name: value for name, value in case.items() if name != "trainer"}
    trainer = trainer_class(
        model=Qwen2ForCausalLM.from_pretrained(folder),
        reward_funcs=score,
        args=config(output_dir=str(folder), **plain, **own),
        train_dataset=Dataset.from_dict({"prompt": TEXTS, "row": range(RESPONSES)}),
        processing_class=tokenizer(),
    )
    trainer.model.train()
    return trainer


def stepped(loss: Callable[[Any], Tensor], inputs: Iterable[Any], new: Tensor) -> dict[str, Tensor]:
    """Loss of each mini-batch, and the gradient (B, T) by the new log-probs."""
    losses = []
    for one in inputs:
        losses.append(loss(one))
        losses[-1].backward()
    return {"loss": torch.stack(losses).detach(), "gradient": new.grad}


def computed(case: dict[str, Any], tables: SimpleNamespace, folder: Path) -> dict[str, Tensor]:
    """Advantages (B,) of GRPO or RLOO, loss, gradient, and the share of ratios clipped; the network returns the new
    log-probs in the loss, and the tables elsewhere."""

    def score(prompts: list[str], **_: Any) -> list[float]:
        return [float(tables.scores[int(prompt)]) for prompt in prompts]

    def generate(prompts: list[str]) -> tuple[Any, ...]:
        rows = [int(prompt) for prompt in prompts]
        prompt_ids, responses = [[row] for row in rows], [[TEXT] * LENGTHS[row] for row in rows]
        if case["trainer"] == "rloo":
            return prompt_ids, responses, [""] * len(rows)
        return prompt_ids, responses, None, [""] * len(rows), None, {}, None, []

    def forward(model: Any, ids: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor | None, None]:
        rows = ids[:, 0]  # a prompt is the number of its row
        if options.get("compute_entropy"):
            return new[rows], tables.entropies[rows], None
        return (tables.ref if model is trainer.ref_model else tables.old)[rows], None, None

    new, trainer = tables.new.clone().requires_grad_(), trainer_of(case, score, folder)
    trainer._generate, trainer._get_per_token_logps_and_entropies = generate, forward
    trainer.current_gradient_accumulation_steps = 1
    rollout = trainer._generate_and_score_completions([{"prompt": text} for text in TEXTS])
    found = {"advantages": rollout["advantages"]}
    if case["num_generations"] == 2:
        return found
    inputs = [
        {name: value[torch.tensor(rows)] if value.dim() else value for name, value in rollout.items()}
        for rows in MINI_BATCHES
    ]
    found |= stepped(lambda one: trainer._compute_loss(trainer.model, one), inputs, new)
    metrics = trainer._metrics["train"]
    clip = "cispo_clip_ratio" if "cispo_clip_ratio" in metrics else "clip_ratio/region_mean"
    return {**found, "clipped": torch.tensor(metrics[clip], dtype=torch.float64)}


def regressed(case: dict[str, Any], tables: SimpleNamespace, folder: Path) -> dict[str, Tensor]:
    """V* (B,) of A*-PO and the prompts that it keeps; loss and gradient."""

    def score(prompts: list[str], completions: list[str], row: list[int], **_: Any) -> list[float]:
        if trainer._optimal_values is not None:
            return tables.scores[row].tolist()
        return [float(tables.reference_scores[one, int(sample)]) for one, sample in zip(row, completions, strict=True)]

    def sample(input_ids: Tensor, **_: Any) -> Tensor:
        count = case["num_value_samples"]
        samples = torch.arange(count).repeat(len(input_ids)).unsqueeze(1)  # the text of a sample is its number
        return torch.cat([input_ids.repeat_interleave(count, 0), samples], 1)

    def respond(input_ids: Tensor, **_: Any) -> Tensor:
        last, places = torch.tensor(LENGTHS)[input_ids] - 1, torch.arange(WIDTH)
        behind = torch.where(places == last, EOS, PAD)
        return torch.cat([input_ids, torch.where(places < last, TEXT, behind)], 1)

    def sums(model: Any, ids: Tensor, mask: Tensor, width: int) -> Tensor:
        logprobs = tables.ref if model is trainer.ref_model else new
        return (logprobs[ids[:, 0]] * mask[:, -width:]).sum(1)  # a prompt is the number of its row

    new, trainer = tables.new.clone().requires_grad_(), trainer_of(case, score, folder)
    trainer.ref_model.generate, trainer.model.generate, trainer._get_sequence_logps = sample, respond, sums
    trainer._estimate_optimal_values()
    values = torch.tensor([trainer._optimal_values[text] for text in TEXTS])
    found = {"v_star": values, "kept": torch.tensor(trainer.train_dataset["row"])}
    inputs = (trainer._prepare_inputs([{"prompt": TEXTS[row], "row": row} for row in rows]) for rows in MINI_BATCHES)
    return found | stepped(lambda one: trainer.compute_loss(trainer.model, one), inputs, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out, tables = parser.parse_args().out, drawn()
    overlong = get_soft_overlong_punishment(PUNISHED, CACHE)([[0] * n for n in range(1, PUNISHED + 1)])
    tensors = {
        **{f"inputs/{name}": value for name, value in vars(tables).items()},
        "inputs/lengths": torch.tensor(LENGTHS),
        "inputs/mini_batches": torch.tensor(MINI_BATCHES),
        "overlong": torch.tensor(overlong, dtype=torch.float64),
    }
    with tempfile.TemporaryDirectory() as folder:
        shape = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
        network = Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2)
        Qwen2ForCausalLM(network).save_pretrained(folder)
        for name, case in CASES.items():
            found = (regressed if case["trainer"] == "a2po" else computed)(case, tables, Path(folder))
            tensors |= {f"{name}/{key}": value.detach() for key, value in found.items()}
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    # One entry, since the order of several is not the same in every run.
    save_file(tensors, out, {"about": json.dumps({**versions, "settings": CASES})})
    print(f"{out}: {len(CASES)} cases, {out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
