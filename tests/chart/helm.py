"""Helm for tests: the SDK that PyPI has (helm-python-sdk), else the binary on PATH; without either they are skipped."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "muster"
NAMESPACE = "muster-system"
KUBE_VERSION = "1.36.0"
POLICY_API = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"

Object = dict[str, Any]

_sdk: Any = importlib.import_module("helm_python") if importlib.util.find_spec("helm_python") else None
_BINARY = shutil.which("helm")

needs_helm = pytest.mark.skipif(_sdk is None and _BINARY is None, reason="neither helm-python-sdk nor helm is there")
needs_binary = pytest.mark.skipif(_BINARY is None, reason="only the helm binary can be told what an API server has")


class RefusedError(Exception):
    """Helm would not render it; the text is what it says."""


def template(
    values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE, path: Path = CHART
) -> list[Object]:
    """The objects that the chart renders to, without a cluster."""
    if _sdk is not None:
        with _sdk.Chart.load(path) as chart:
            try:
                chart.validate_schema(chart.merge_values(dict(values or {})))
                # Merged here once more: what null has taken away would come back.
                texts = chart.render(values=dict(values or {}), name="muster", namespace=namespace)
            except _sdk.HelmError as error:
                raise RefusedError(str(error)) from None
        out = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    else:
        out = [
            _run(
                ["template", "muster", str(path), "--namespace", namespace, "--kube-version", KUBE_VERSION],
                values or {},
            )
        ]
    return [document for text in out for document in _documents(text)]


def template_with(
    values: Mapping[str, Any], *, apis: Sequence[str] = (), kube_version: str = KUBE_VERSION
) -> list[Object]:
    """The same for an API server of this version with these kinds; by the binary only."""
    flags = [flag for api in apis for flag in ("--api-versions", api)]
    text = _run(
        ["template", "muster", str(CHART), "--namespace", NAMESPACE, "--kube-version", kube_version, *flags], values
    )
    return _documents(text)


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the chart's kinds are long


class _Once(_Base):  # type: ignore[misc]
    """Refuses a key that is said twice, of which only one counts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Object:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return dict(super().construct_mapping(node, deep))


def _documents(text: str) -> list[Object]:
    return [document for document in yaml.load_all(text, _Once) if document]


def lint(values: Mapping[str, Any] | None = None) -> list[str]:
    """What `helm lint --strict` complains about, but for the icon."""
    if _sdk is not None:
        answer = _sdk.lint(CHART, dict(values or {}), strict=True, namespace=NAMESPACE)
        return [*answer["errors"], *(m["error"] for m in answer["messages"] if m["severity"] > 1)]
    try:
        _run(["lint", str(CHART), "--strict", "--kube-version", KUBE_VERSION], values or {})
    except RefusedError as error:
        return [str(error)]
    return []


def _run(arguments: Sequence[str], values: Mapping[str, Any]) -> str:
    assert _BINARY is not None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(dict(values), file)
        file.flush()
        ran = subprocess.run([_BINARY, *arguments, "-f", file.name], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RefusedError(ran.stderr or ran.stdout)
    return ran.stdout
