from __future__ import annotations

import io
import re

from rich.console import Console

from pipeline.run.symptoms import Symptom
from studies.claims.falsifiers import Verdict
from studies.claims.symptoms import ArmHealth
from studies.console.summary import claim_table, print_health


def test_the_verdicts_of_many_trials_are_one_row_for_each_claim() -> None:
    verdicts = [
        Verdict("drift", arm, seed, "FALSIFIED" if arm == "a" and seed else "SURVIVED", None, None, 1, f"{arm}{seed}")
        for arm in ("a", "b")
        for seed in range(3)
    ]
    verdicts += [Verdict("wins", "b", 0, "NOT TESTED", None, None, 0, "no record")]
    text = io.StringIO()
    Console(file=text, width=200).print(claim_table(verdicts))
    _, drift, wins = text.getvalue().splitlines()
    assert re.split(r"\s{2,}", drift.strip())[1:] == [
        "FALSIFIED", "2 FALSIFIED, 4 SURVIVED", "a 2/3 FALSIFIED, such as seed 1 of a: a1",
    ]  # fmt: skip
    assert wins.strip().endswith("b 1/1 NOT TESTED, such as seed 0 of b: no record")


KL = Symptom("objective/kl_exact_per_token", "above", 0.5, 30, 100, 4, "far", "raise kl.beta")
RATIO = Symptom("policy/ratio", "above", 1.1, 20, 100, 4, "explodes", "lower optimiser.lr")


def printed(*arms: ArmHealth) -> str:
    text = io.StringIO()
    print_health(Console(file=text, width=200), arms)
    return text.getvalue()


def test_unhealthy_arms_are_named_with_the_worst_symptom() -> None:
    assert printed(ArmHealth("a", 5, {}), ArmHealth("b", 3, {7: (KL, RATIO), 8: (RATIO,)})) == (
        "Health: unhealthy in 2 of 8 judged trials\n"
        "  b, 2 of 3, most in seed 7: objective/kl_exact_per_token above 0.5 in 30 % of 100 records, first at step 4."
        " Likely cause: far. Try: raise kl.beta. Also outside: policy/ratio.\n\n"
    )
