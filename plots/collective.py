"""The figure of one collective by size (JSON of `rehearse collective`): its time and its bus bandwidth for each algorithm and protocol,
with the choice of the library in bold."""

from plots import style
from plots.fields import Amount, Object, Positive, Some


class Way(Object):
    algorithm: str
    protocol: str
    seconds: Amount

    @property
    def name(self):
        return f"{self.algorithm} {self.protocol}".strip()


class Size(Way):
    """What the library chooses for this size, and every way."""

    bytes: Positive
    bus_bandwidth: Amount
    ways: list[Way]


class Curve(Object):
    """One collective on one group of ranks."""

    collective: str
    ranks: int
    cluster: str
    software: str
    library: str
    sizes: Some[Size]

    @property
    def title(self):
        return f"{self.collective} of {self.ranks} ranks on {self.cluster}, {self.software} ({self.library})"


def draw(curve):
    figure, (time, bus) = style.panels(11, 4, (1, 1))
    figure.suptitle(curve.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    ways = {}  # name -> [(size, seconds)]
    for size in curve.sizes:
        for way in size.ways:
            ways.setdefault(way.name, []).append((size, way.seconds))
    for number, (name, points) in enumerate(ways.items()):
        cycle, colour = divmod(number, len(style.SERIES))
        line = {"color": style.SERIES[colour], "linestyle": ("-", "--", ":")[cycle % 3], "linewidth": 1}
        sizes = [size.bytes for size, _ in points]
        time.plot(sizes, [1e6 * seconds for _, seconds in points], label=name, **line)
        # The bytes that cross each link, in the time of this way.
        bus.plot(sizes, [size.bus_bandwidth * size.seconds / seconds / 1e9 for size, seconds in points], **line)
    sizes = [size.bytes for size in curve.sizes]
    chosen = {"color": style.INK, "linewidth": 2.4, "alpha": 0.55, "marker": "o", "markersize": 3.5, "zorder": 5}
    time.plot(sizes, [1e6 * size.seconds for size in curve.sizes], label="chosen", **chosen)
    bus.plot(sizes, [size.bus_bandwidth / 1e9 for size in curve.sizes], **chosen)
    for axis, title, label in ((time, "Time", "time (µs)"), (bus, "Bus bandwidth", "bus bandwidth (GB/s)")):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda count, _: "{1:g} {0}".format(*_binary(count)))
        axis.set_title(title)
        axis.set_xlabel("size of the tensor")
        axis.set_ylabel(label)
        axis.grid()
    time.set_yscale("log")
    bus.set_ylim(0)
    time.legend(loc="upper left")
    return figure


def _binary(count):
    """(unit, number) of a size in bytes."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return unit, round(count / 2**power, 1)
    return "B", count
