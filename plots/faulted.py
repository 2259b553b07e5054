"""The figure of a fault trace within simulated steps (`rehearse simulate --faults`): the time of each step with and without the events, and
where they strike."""

from plots import style

SHOWN = 12  # events with their text; of more, only the places


def read(item):
    """Reads the value of "faults" in the JSON of `simulate`; None without one. `item` is an inputs.Checked."""
    if item.value is None:
        return None
    events = [
        (event.get("step").integer(), event.get("text").text(), event.get("cost_s").number())
        for event in item.get("events").items()
        if event.get("step", None).value is not None and event.get("no_effect", None).value is None
    ]
    stop = item.get("stop", None)
    return {
        "times": [v.number(0) for v in item.get("step_times_s").items()],
        "undisturbed": [v.number(0) for v in item.get("undisturbed_step_times_s").items()],
        "events": events,
        "stop": None if stop.value is None else stop.get("step").integer(),
    }


def draw(faults):
    longest = max([*faults["times"], *faults["undisturbed"], 1e-12])
    factor, unit = style.time_unit(longest)
    figure, axes = style.figure(12.5, 3.8, squeeze=False)
    axis = axes[0, 0]

    def steps(values, colour, label):
        axis.step(range(1, len(values) + 1), [v * factor for v in values], where="mid", color=colour, label=label)

    steps(faults["undisturbed"], style.QUIET, "undisturbed")
    steps(faults["times"], style.SERIES[0], "with the events")
    for number, (step, text, cost) in enumerate(faults["events"]):
        stops = step == faults["stop"]
        axis.axvline(step, color=style.VERMILION, linewidth=2 if stops else 0.8, linestyle="-" if stops else ":")
        if number < SHOWN:
            axis.annotate(
                f"{text}: {'stops' if stops else f'+{max(0, cost):.3g} s'}",
                (step, longest * factor),
                xytext=(3, 0),
                textcoords="offset points",
                rotation=90,
                ha="left",
                va="top",
                fontsize=7,
            )
    axis.set_title("Steps under a fault trace")
    axis.set_xlabel("step")
    axis.set_ylabel(f"step time ({unit})")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper right")
    axis.grid()
    return figure
