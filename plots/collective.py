"""The figure of one collective by size (JSON of `rehearse collective`): its time and its bus bandwidth for each algorithm and protocol,
with the choice of the library in bold."""

from dataclasses import dataclass

from plots import style


@dataclass
class Curve:
    """One collective on one group of ranks. `ways`: name -> [(bytes, seconds)]; `chosen`: [(bytes, seconds, bus bandwidth, name)]."""

    title: str
    ways: dict
    chosen: list


def read(top):
    top.version()
    ways, chosen = {}, []
    for size in top.get("sizes").items():
        count = size.get("bytes").number(1)
        for way in size.get("ways").items():
            ways.setdefault(_name(way), []).append((count, way.get("seconds").number(0)))
        chosen.append((count, size.get("seconds").number(0), size.get("bus_bandwidth").number(0), _name(size)))
    if not chosen:
        top.get("sizes").fail("at least one size")
    title = f"{top.get('collective').text()} of {top.get('ranks').integer()} ranks on {top.get('cluster').text()}"
    return Curve(f"{title}, {top.get('software').text()} ({top.get('library').text()})", ways, chosen)


def _name(way):
    return f"{way.get('algorithm').text()} {way.get('protocol').text()}".strip()


def draw(curve):
    figure, (time, bus) = style.panels(11, 4, (1, 1))
    figure.suptitle(curve.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    per_second = {count: bandwidth * seconds for count, seconds, bandwidth, _ in curve.chosen}  # bytes that cross each link
    for number, (name, points) in enumerate(curve.ways.items()):
        cycle, colour = divmod(number, len(style.SERIES))
        line = {"color": style.SERIES[colour], "linestyle": ("-", "--", ":")[cycle % 3], "linewidth": 1}
        sizes = [count for count, _ in points]
        time.plot(sizes, [1e6 * seconds for _, seconds in points], label=name, **line)
        bus.plot(sizes, [per_second[count] / seconds / 1e9 for count, seconds in points], **line)
    sizes = [count for count, *_ in curve.chosen]
    chosen = {"color": style.INK, "linewidth": 2.4, "alpha": 0.55, "marker": "o", "markersize": 3.5, "zorder": 5}
    time.plot(sizes, [1e6 * seconds for _, seconds, *_ in curve.chosen], label="chosen", **chosen)
    bus.plot(sizes, [bandwidth / 1e9 for *_, bandwidth, _ in curve.chosen], **chosen)
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
