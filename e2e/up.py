"""A control plane for a person: started, left running until Ctrl-C, with a kubeconfig to use meanwhile.

python -m e2e.up --nodes 4 --muster

With --muster a controller runs on it, installed as a cluster has it, and the nodes bear the label that
config/samples ask for.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack

from e2e.build import BuildError
from e2e.control_plane import COMPONENTS, ControlPlane
from e2e.installed import Installed

LABELS = {"gpu": "h100"}
"""Of every node: what the flavor of config/samples selects."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.up", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=4, help="fake nodes to begin with (4)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each (8)")
    parser.add_argument("--muster", action="store_true", help="install Muster and run its controller")
    parser.add_argument("--without", action="append", default=[], choices=COMPONENTS, help="leave a component out")
    parser.add_argument("--keep", action="store_true", help="leave the work folder with the logs behind")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    components = [name for name in COMPONENTS if name not in arguments.without]
    try:
        with ExitStack() as stack:
            cp = stack.enter_context(ControlPlane(components=components, keep=arguments.keep, say=True))
            if arguments.nodes:
                cp.add_nodes(arguments.nodes, arguments.gpus, labels=LABELS)
            if arguments.muster:
                installed = stack.enter_context(Installed(cp, cp.work_dir))
                installed.install(cp)
                print(f"muster: {installed.started(tuning={}).log}", flush=True)
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
