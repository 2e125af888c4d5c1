"""`helm`, for shells of tests where there is no binary: the commands of the documentation, by the SDK that PyPI has.

python -m e2e.helm install NAME CHART [--namespace N] [--create-namespace] [--take-ownership] [--values FILE]
                           [--set KEY=VALUE]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.api_client import merged


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("install", "upgrade", "template", "rollback", "uninstall"):
        one = actions.add_parser(action, allow_abbrev=False)
        one.add_argument("--namespace", "-n", default="default")
        words = ["name"]
        if action in ("install", "upgrade", "template"):
            words = ["chart"] if action == "template" else ["name", "chart"]
            one.add_argument("--values", "-f", action="append", default=[])
            one.add_argument("--set", action="append", default=[])
        if action == "install":
            one.add_argument("--create-namespace", action="store_true")
            one.add_argument("--take-ownership", action="store_true")
        if action == "upgrade":
            one.add_argument("--install", action="store_true")
        for word in words:
            one.add_argument(word)
    said = parser.parse_args(arguments)
    sdk: Any = importlib.import_module("helm_python")
    values: dict[str, Any] = {}
    for path in getattr(said, "values", ()):
        values = merged(values, yaml.safe_load(Path(path).read_text("utf-8")) or {})
    for expression in getattr(said, "set", ()):
        values = merged(values, sdk.parse_set_string(expression))
    try:
        if said.action == "template":
            with sdk.Chart.load(said.chart) as chart:
                rendered = chart.render(
                    values=chart.merge_values(values), name="release-name", namespace=said.namespace
                )
            print("\n---\n".join(text for path, text in sorted(rendered.items()) if path.endswith(".yaml")))
            return 0
        with sdk.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=said.namespace) as config:
            _act(sdk, config, said, values)
    except sdk.HelmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"{said.action} {said.name}: done")
    return 0


def _act(sdk: Any, config: Any, said: argparse.Namespace, values: dict[str, Any]) -> None:
    if said.action == "uninstall":
        config.uninstall(said.name)
    elif said.action == "rollback":
        config.rollback(said.name)
    elif said.action == "install":
        more = {"create_namespace": said.create_namespace}
        with _owning(said.take_ownership):
            config.install(said.chart, said.name, values, namespace=said.namespace, **more)
    else:
        try:
            config.upgrade(said.chart, said.name, values, namespace=said.namespace)
        except sdk.HelmNotFoundError:
            if not said.install:
                raise
            config.install(said.chart, said.name, values, namespace=said.namespace)


@contextlib.contextmanager
def _owning(take: bool) -> Iterator[None]:
    """The library knows the option, and the SDK's Python passes no such argument on."""
    module: Any = importlib.import_module("helm_python.config")
    options = module._opts
    module._opts = lambda **given: options(**given, take_ownership=take or None)
    try:
        yield
    finally:
        module._opts = options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
