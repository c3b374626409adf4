"""REINFORCE with a KL penalty on a toy whose KL is exact: 128 prompts, each with 32 answers of one token.

Training sees a proxy of the gold score, with larger errors where the reference policy rarely goes.
"""

import argparse
import csv
import json
from pathlib import Path

import torch

PROMPTS, ANSWERS, SAMPLES, STEPS, SAVE_EVERY = 128, 32, 4, 300, 50
parser = argparse.ArgumentParser()
for name, kind in {"beta": float, "lr": float, "seed": int, "output_dir": Path}.items():
    parser.add_argument(f"--{name}", type=kind, required=True)
parser.add_argument("--resume", action="store_true", help="go on from checkpoint.pt")
given = parser.parse_args()

world = torch.Generator().manual_seed(0)  # the same prompts, reference and gold scores under all seeds
reference = torch.randn(PROMPTS, ANSWERS, generator=world).log_softmax(-1)
gold = torch.randn(PROMPTS, ANSWERS, generator=world)
torch.manual_seed(given.seed)
proxy = gold + (reference.max(1, keepdim=True).values - reference) * torch.randn(PROMPTS, ANSWERS)
logits = reference.clone().requires_grad_()
optimiser = torch.optim.Adam([logits], lr=given.lr)

first, checkpoint, log_file = 1, given.output_dir / "checkpoint.pt", given.output_dir / "metrics.jsonl"
if given.resume:
    state = torch.load(checkpoint, weights_only=True)
    first = state["step"] + 1
    with torch.no_grad():
        logits.copy_(state["logits"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["random"])
    log_file.write_text("".join(log_file.read_text().splitlines(keepends=True)[: state["step"]]))  # rows until then
with log_file.open("a" if given.resume else "w") as log:
    for step in range(first, STEPS + 1):
        logp = logits.log_softmax(-1)
        answers = torch.multinomial(logp.detach().exp(), SAMPLES, replacement=True)
        scores = proxy.gather(1, answers)
        kl = (logp.exp() * (logp - reference)).sum(-1)
        advantages = scores - scores.mean(1, keepdim=True)
        loss = -(advantages * logp.gather(1, answers)).mean() + given.beta * kl.mean()
        (logits.grad,) = torch.autograd.grad(loss, logits)
        optimiser.step()
        row = {"step": step, "score": scores.mean().item(), "objective/kl_exact_per_token": kl.mean().item()}
        print(json.dumps(row), file=log, flush=True)
        if step % SAVE_EVERY == 0:
            state = {"step": step, "logits": logits, "optimiser": optimiser.state_dict()}
            torch.save({**state, "random": torch.get_rng_state()}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)  # a kill leaves no half of a checkpoint

policy = logits.detach().softmax(-1)
kl = (policy * (policy.log() - reference)).sum(-1)
means = {"gold": (policy * gold).sum(-1), "proxy": (policy * proxy).sum(-1), "kl": kl, "length": torch.ones(PROMPTS)}
with (given.output_dir / "eval.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["prompt_id", *means])
    table.writerows(zip(range(PROMPTS), *(column.tolist() for column in means.values()), strict=True))
