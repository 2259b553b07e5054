"""What Sun 2026 prints in Table 1, word by word, and how well the order of its words is that of measured numbers. No simulation and no
training run uses these words."""

import itertools

# method: (name there, privacy protection, communication efficiency, robustness to failure)
ROWS = {
    "megatron": ("Megatron-LM", "None", "High (ideal clusters)", "Low"),
    "deepspeed": ("DeepSpeed (ZeRO)", "None", "High (with offloading)", "Low"),
    "pipedream": ("PipeDream", "None", "Medium", "Medium"),
    "byteps": ("BytePS", "Limited", "High (server-aided)", "Medium"),
    "fedavg": ("FedAvg+Sec Agg", "Strong", "Low", "High"),
    "adaptive": ("Ours", "None", "High (adaptive)", "High"),
}
PRIVACY, COMMUNICATION, ROBUSTNESS = 1, 2, 3
RANKING = {"None": 0, "Limited": 1, "Strong": 2, "Low": 0, "Medium": 1, "High": 2}


def word(method, column):
    """The rank of a word, without what stands in brackets after it."""
    return RANKING[ROWS[method][column].split(" (")[0]]


def agreement(column, values, more_is_better):
    """(pairs that the numbers order as the words do, pairs that the words order). `values`: {method: number}. Two methods with one word, or
    with the same number, are no pair that agrees."""
    agree = ordered = 0
    for a, b in itertools.combinations(values, 2):
        words = word(a, column) - word(b, column)
        if words == 0:
            continue
        ordered += 1
        numbers = (values[a] - values[b]) * (1 if more_is_better else -1)
        agree += words * numbers > 0
    return agree, ordered
