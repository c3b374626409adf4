"""TRL's GRPO trainer on a network of 0.2 M parameters, which is rewarded for vowels.

Needs TRL 1.12 or newer, and no download. Its log is trainer_state.json, which grows at each checkpoint.
"""

import argparse
import csv
import string
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

LETTERS, TOKENS = string.ascii_lowercase, 8


def vowels(completions: list[str], **_: Any) -> list[float]:
    """Return each completion's vowels, as a share of the most tokens that it can have."""
    return [sum(letter in "aeiou" for letter in text.split()) / TOKENS for text in completions]


parser = argparse.ArgumentParser()
for name, kind in {"beta": float, "lr": float, "seed": int, "steps": int, "output_dir": Path}.items():
    parser.add_argument(f"--{name}", type=kind, required=True)
parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
given = parser.parse_args()

words = {word: index for index, word in enumerate(["<pad>", "<eos>", *LETTERS])}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
)
set_seed(given.seed)
config = Qwen2Config(
    vocab_size=len(words), hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=4, bos_token_id=None, eos_token_id=1, pad_token_id=0,
)  # fmt: skip
Qwen2ForCausalLM(config).save_pretrained(given.output_dir / "start")  # TRL reads its reference model from a folder
model = Qwen2ForCausalLM.from_pretrained(given.output_dir / "start", trust_remote_code=False)
settings = GRPOConfig(
    output_dir=str(given.output_dir), beta=given.beta, learning_rate=given.lr, seed=given.seed, max_steps=given.steps,
    per_device_train_batch_size=32, num_generations=8, max_completion_length=TOKENS, logging_steps=1,
    save_steps=max(1, given.steps // 4), save_total_limit=2, report_to="none", use_cpu=not torch.cuda.is_available(),
    bf16=False, gradient_checkpointing=False, disable_tqdm=True,
)  # fmt: skip
trainer = GRPOTrainer(
    model=model, reward_funcs=vowels, args=settings, processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"prompt": list(LETTERS) * 8}),
)  # fmt: skip
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_state()

asked = torch.tensor([[words[letter]] for letter in LETTERS], device=model.device)
asked = asked.repeat_interleave(16, dim=0)
answers = model.generate(asked, attention_mask=torch.ones_like(asked), do_sample=True, max_new_tokens=TOKENS)
texts = tokenizer.batch_decode(answers[:, 1:], skip_special_tokens=True)
scores = torch.tensor(vowels(texts)).view(-1, 16).mean(1)
with (given.output_dir / "eval.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["prompt_id", "score"])
    table.writerows(zip(LETTERS, scores.tolist(), strict=True))
