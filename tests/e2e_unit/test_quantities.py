"""The oracle's reading of quantities and of what a pod asks for."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.quantities import milli, pod_requests


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1000),
        (8, 8000),
        ("100m", 100),
        ("1.5", 1500),
        (".5", 500),
        ("1Gi", 2**30 * 1000),
        ("2e3", 2_000_000),
        ("1E", 10**21),
        ("3u", 1),
        ("-2", -2000),
    ],
)
def test_milli(text: Any, expected: int) -> None:
    assert milli(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1x", "Ki", "1 Gi", "--1"])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError):
        milli(text)


def container(cpu: str, **rest: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}} | rest


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("2")]}, 3000),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000),
        ({"containers": [container("1")], "initContainers": [container("5")]}, 5000),
        ({"containers": [container("3")], "initContainers": [container("1", restartPolicy="Always")]}, 4000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", restartPolicy="Always"), container("4")],
            },
            5000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}}, 6000),
    ],
)
def test_pod_requests(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(spec)["cpu"] == cpu
