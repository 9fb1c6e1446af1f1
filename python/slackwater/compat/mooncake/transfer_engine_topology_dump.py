"""`transfer_engine_topology_dump`: which network interfaces are near which memory, as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence

from slackwater._native import RawEngine


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints each location of memory with the interfaces to prefer and the rest."""
    parser = argparse.ArgumentParser(
        prog="transfer_engine_topology_dump",
        description=__doc__,
        epilog="SLACKWATER_TCP_TOPOLOGY names a JSON file that says otherwise; `slackwater topology` shows more.",
    )
    parser.parse_args(arguments)
    try:
        topology = json.loads(RawEngine.topology())
    except (ValueError, OSError) as error:
        sys.exit(f"transfer_engine_topology_dump: {error}")
    print(json.dumps(topology, indent=4))


if __name__ == "__main__":
    main()
