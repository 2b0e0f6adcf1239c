"""`make bench`: measures this machine's worker, gateway and Envoy beside the echo, and says which goals are met.

    python -m bench                         everything, three times over; about ten minutes
    python -m bench --quick layouts         one part, once, short
    python -m bench --list

Run it on a machine that does nothing else: it waits for quiet before each run and shows how busy the machine was.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import extremes, figures, h2load, layouts, models, overload
from bench.figures import Table
from bench.load import ROOT
from bench.procs import patience, wait_until_quiet

Part = Callable[..., Iterator[Table]]

PARTS: dict[str, Part] = {
    "layouts": layouts.measure,
    "one": layouts.concurrency_one,
    "overload": overload.measure,
    "batching": extremes.batching_pays,
    "large": extremes.large_messages,
    "idle": extremes.idle_connections,
    "h2load": h2load.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)}; none is all")
    parser.add_argument("--repeats", type=int, default=3, help="how often each run is repeated (3)")
    parser.add_argument("--seconds", type=float, default=3, help="length of each run (3)")
    parser.add_argument(
        "--quick", action="store_true", help="once, one second each, without waiting for quiet: to see that it works"
    )
    parser.add_argument(
        "--models", type=Path, default=ROOT / "build" / "bench-models", help="where the models are made"
    )
    parser.add_argument("--name", default="headrace", help="bench/results/NAME.json")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if options.list or unknown:
        print("\n".join(PARTS))
        sys.exit(f"unknown: {', '.join(unknown)}" if unknown else 0)
    repeats, seconds = (1, 1.0) if options.quick else (options.repeats, options.seconds)

    models.build(options.models)
    if options.quick:
        patience.seconds = 0
    if (busy := wait_until_quiet()) > 0.15:
        print(f"This machine is not quiet ({busy:.2f} cores busy): take the figures for what they are.")
    tables = []
    for name in options.parts or PARTS:
        for table in PARTS[name](options.models, repeats=repeats, seconds=seconds):
            table.print()
            tables.append(table)
    print(f"\nWritten to {figures.write(tables, name=options.name, command=sys.argv)}")


if __name__ == "__main__":
    main()
