"""The figure of a fault trace within simulated steps (`rehearse simulate --faults`): the time of each step with and without the events, and
where they strike."""

from plots import style
from plots.fields import Amount, Number, Object, record

SHOWN = 12  # events with their text; of more, only the places


class Event(Object):
    text: str
    cost_s: Number
    step: int | None = None
    no_effect: object = None


Stop = record("Stop", step=int)


class Faults(Object):
    """The value of "faults" in the JSON of `simulate`."""

    step_times_s: list[Amount]
    undisturbed_step_times_s: list[Amount]
    events: list[Event]
    stop: Stop | None = None


def draw(faults):
    longest = max([*faults.step_times_s, *faults.undisturbed_step_times_s, 1e-12])
    factor, unit = style.time_unit(longest)
    figure, axes = style.figure(12.5, 3.8, squeeze=False)
    axis = axes[0, 0]

    def steps(values, colour, label):
        axis.step(range(1, len(values) + 1), [v * factor for v in values], where="mid", color=colour, label=label)

    steps(faults.undisturbed_step_times_s, style.QUIET, "undisturbed")
    steps(faults.step_times_s, style.SERIES[0], "with the events")
    drawn = [event for event in faults.events if event.step is not None and event.no_effect is None]
    for number, event in enumerate(drawn):
        stops = faults.stop is not None and event.step == faults.stop.step
        axis.axvline(event.step, color=style.VERMILION, linewidth=2 if stops else 0.8, linestyle="-" if stops else ":")
        if number < SHOWN:
            axis.annotate(
                f"{event.text}: {'stops' if stops else f'+{max(0, event.cost_s):.3g} s'}",
                (event.step, longest * factor),
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
