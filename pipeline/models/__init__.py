"""Networks: loading, the policy with its value head, generation. No trackers, no studies, no data sets."""
