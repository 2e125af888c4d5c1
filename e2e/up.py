"""A control plane for a person: started, left running until Ctrl-C, with a kubeconfig to use meanwhile.

python -m e2e.up --nodes 4
"""

from __future__ import annotations

import argparse
import signal
import sys

from e2e.build import BuildError
from e2e.control_plane import COMPONENTS, ControlPlane


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.up", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=0, help="fake nodes to begin with")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each (8)")
    parser.add_argument("--without", action="append", default=[], choices=COMPONENTS, help="leave a component out")
    parser.add_argument("--keep", action="store_true", help="leave the work folder with the logs behind")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    components = [name for name in COMPONENTS if name not in arguments.without]
    try:
        with ControlPlane(components=components, keep=arguments.keep, say=True) as cp:
            if arguments.nodes:
                cp.add_nodes(arguments.nodes, arguments.gpus)
            print(f"\nlogs: {cp.work_dir}\n\nexport KUBECONFIG={cp.kubeconfig()}\n\nCtrl-C ends it.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
