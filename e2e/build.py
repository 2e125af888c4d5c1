"""The binaries of the control plane: found where somebody put them, else built from the pinned modules in `tools/`.

A binary is taken from $KUBEBUILDER_ASSETS, then from PATH, and from either only if it reports the minor version that
`tools/` pins (an old kubectl on PATH must not end up beside a new API server); what remains is built with Go into a
cache outside the tree, ${MUSTER_E2E_CACHE:-~/.cache/muster-e2e}. The cache has one folder per module, keyed by its
go.mod and go.sum, so that a new version of one does not build the others again. The manifests that belong to a
binary (JobSet's CRDs and webhooks, kwok's stages) are copied from the module beside it.

    python -m e2e.build              all that `make e2e` asks for
    python -m e2e.build kubectl      one
    python -m e2e.build kubernetes-1.31               another Kubernetes, for `make e2e-older`
    python -m e2e.build --kubernetes 1.37             all that `make e2e KUBERNETES=1.37` asks for
    python -m e2e.build kueue-runner minimalkueue     Kueue's own benchmark, for `make bench-kueue`
    python -m e2e.build kueue        Kueue itself, for the way there and back (e2e/test_migrate.py)
    python -m e2e.build kueuectl     its command line, for Kueue mode (e2e/test_kueue_tools.py)
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"


class BuildError(RuntimeError):
    """A binary could not be found or built; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Module:
    """One folder of `tools/`: the Go module that it pins, and what is taken from it."""

    folder: str
    path: str
    binaries: dict[str, str]  # name of the binary -> Go package; one that begins with ./ is built in its own module
    manifests: dict[str, str] = dataclasses.field(default_factory=dict)  # folder in the module -> folder in the cache
    usual: bool = True  # part of what `make e2e` asks for

    @property
    def directory(self) -> Path:
        return TOOLS / self.folder

    @functools.cached_property
    def version(self) -> str:
        found = re.search(rf"^(?:require)?\s+{re.escape(self.path)} (v\S+)", self.go_mod, re.MULTILINE)
        if not found:
            raise BuildError(f"{self.directory}/go.mod does not require {self.path}")
        return found[1]

    @functools.cached_property
    def go_mod(self) -> str:
        return (self.directory / "go.mod").read_text()

    @functools.cached_property
    def cache(self) -> Path:
        key = hashlib.sha256()
        for text in (self.go_mod, (self.directory / "go.sum").read_text(), *self.ldflags(), *self.binaries.values()):
            key.update(text.encode() + b"\0")
        return cache_root() / f"{self.folder}-{self.version}-{platform.machine()}-{key.hexdigest()[:12]}"

    def ldflags(self) -> list[str]:
        """Strip, and stamp the version: an unstamped Kubernetes calls itself v0.0.0-master, which kubectl refuses."""
        flags = ["-s", "-w"]
        if self.path == "k8s.io/kubernetes":
            major, minor, _ = self.version.removeprefix("v").split(".", 2)
            stamps = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            stamps |= {"buildDate": "1970-01-01T00:00:00Z"}
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
                flags += [f"-X={package}.{name}={value}" for name, value in stamps.items()]
        return flags


def _other(minor: str, *names: str) -> Module:
    """Another minor version of Kubernetes; its binaries have it behind their names."""
    binaries = {f"{name}-{minor}": f"k8s.io/kubernetes/cmd/{name}" for name in names}
    return Module(f"kubernetes-{minor}", "k8s.io/kubernetes", binaries, usual=False)


MODULES = (
    Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "kubernetes",
        "k8s.io/kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in
         ("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler")},
    ),
    Module(
        "kwok",
        "sigs.k8s.io/kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        {"kustomize/stage": "stages"},
    ),
    Module(
        "jobset",
        "sigs.k8s.io/jobset",
        {"jobset-controller": "sigs.k8s.io/jobset"},
        {
            "config/components/crd/bases": "crds",
            "config/components/rbac": "rbac",
            "config/components/webhook": "webhooks",
        },
    ),
    Module(
        "kueue",
        "sigs.k8s.io/kueue",
        {
            "kueue": "./cmd/kueue",
            "kueuectl": "./cmd/kueuectl",
            "kueue-runner": "./test/performance/scheduler/runner",
            "minimalkueue": "./test/performance/scheduler/minimalkueue",
            "minimalkueue-unlimited": "./test/performance/scheduler/minimalkueue",
        },
        {"config/components/crd/bases": "crds", "config/components/webhook": "webhooks"},
        usual=False,
    ),
    Module("cert-manager", "github.com/cert-manager/cert-manager", {}, {"deploy/crds": "crds"}),
    Module(
        "prometheus-operator",
        "github.com/prometheus-operator/prometheus-operator",
        {},
        {"example/prometheus-operator-crd": "crds"},
    ),
    _other("1.31", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    _other("1.34", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    _other("1.37", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
)  # fmt: skip
BINARIES = {name: module for module in MODULES for name in module.binaries}
USUAL = tuple(name for name, module in BINARIES.items() if module.usual)
CLIENT_LIMIT = re.compile(r"^\s*kubeConfig\.(QPS|Burst) = \d+$", re.MULTILINE)
"""Of Kueue's scheduler in its benchmark."""


def cache_root() -> Path:
    return Path(os.environ.get("MUSTER_E2E_CACHE") or Path.home() / ".cache" / "muster-e2e")


def of_kubernetes(minor: str, names: Iterable[str]) -> dict[str, str]:
    """Name -> the same of another minor version of Kubernetes ("": of the usual), where there is one."""
    if minor and f"kubernetes-{minor}" not in {module.folder for module in MODULES}:
        raise BuildError(f"Kubernetes {minor} is not pinned in {TOOLS}")
    return {name: other if minor and (other := f"{name}-{minor}") in BINARIES else name for name in names}


def find(name: str) -> Path | None:
    """The binary, if it is there already and of the right version; nothing is built."""
    module = BINARIES[name]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for place in [assets] if assets else [], os.environ.get("PATH", "").split(os.pathsep):
        for folder in place:
            candidate = Path(folder or ".") / name
            if candidate.is_file() and os.access(candidate, os.X_OK) and _same_minor(candidate, module.version):
                return candidate
    built = module.cache / name
    return built if built.is_file() else None


def ensure(names: Iterable[str] = USUAL, say: bool = True) -> dict[str, Path]:
    """All of `names`, built where they are missing."""
    found: dict[str, Path] = {}
    for name in names:
        path = find(name)
        if path is None:
            with _lock(BINARIES[name].cache):
                path = find(name) or _build(name, say)
        elif say:
            print(f"{name:24} {path}", flush=True)
        found[name] = path
    return found


def manifests(folder: str) -> Path:
    """The manifests of one module ("jobset", "kwok"), copied out of the module cache at need."""
    module = _named(folder)
    with _lock(module.cache):
        for inside, outside in module.manifests.items():
            target = module.cache / outside
            if target.is_dir():
                continue
            copy = module.cache / f".{outside}.new"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(_module_directory(module) / inside, copy, copy_function=shutil.copyfile)
            for entry in [copy, *copy.rglob("*")]:  # folders of the module cache are read-only
                entry.chmod(0o755 if entry.is_dir() else 0o644)
            copy.rename(target)
    return module.cache


def _build(name: str, say: bool) -> Path:
    module = BINARIES[name]
    target = module.cache / name
    if say:
        print(f"{name:24} building {module.path} {module.version} ...", flush=True)
    began = time.monotonic()
    command = ["build", "-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={' '.join(module.ldflags())}"]
    part = target.with_name(f".{name}.new")
    package = module.binaries[name]
    if package.startswith("./"):
        own = _module_directory(module)
        with _without_limit(own, package) if name.endswith("-unlimited") else contextlib.nullcontext(own) as sources:
            _go(module, *command, "-o", str(part), package, at=sources)
    else:
        _go(module, *command, "-o", str(part), package)
    part.rename(target)
    if say:
        size = target.stat().st_size / 1e6
        print(f"{name:24} built in {time.monotonic() - began:.0f} s, {size:.0f} MB: {target}", flush=True)
    return target


@contextlib.contextmanager
def _without_limit(sources: Path, package: str) -> Iterator[Path]:
    """A copy of the sources, in which the package's client has no limit."""
    with tempfile.TemporaryDirectory(prefix="muster-build-") as made:
        copy = Path(made) / "sources"
        shutil.copytree(sources, copy, copy_function=shutil.copyfile)
        main = copy / package / "main.go"
        for entry in [copy, main, *(e for e in copy.rglob("*") if e.is_dir())]:  # the module cache is read-only
            entry.chmod(0o755 if entry.is_dir() else 0o644)
        text, many = CLIENT_LIMIT.subn(lambda found: f"\tkubeConfig.{found[1]} = 100_000", main.read_text())
        if many != 2:
            raise BuildError(f"{package}/main.go sets no limit of the client where it is looked for")
        main.write_text(text)
        yield copy


def module_directory(folder: str) -> Path:
    """Where the sources of one module are, downloaded at need."""
    return _module_directory(_named(folder))


def _named(folder: str) -> Module:
    return next(module for module in MODULES if module.folder == folder)


def _module_directory(module: Module) -> Path:
    return Path(json.loads(_go(module, "mod", "download", "-json", f"{module.path}@{module.version}"))["Dir"])


def _go(module: Module, *arguments: str, at: Path | None = None) -> str:
    """Run in the folder that pins the module, or `at` another."""
    go = shutil.which("go")
    if go is None:
        raise BuildError(
            f"{module.path} {module.version} is needed: install Go and run again, or set KUBEBUILDER_ASSETS to a "
            f"folder with {', '.join(module.binaries)} (the manifests of JobSet and kwok need Go once)"
        )
    done = subprocess.run(
        [go, *arguments],
        check=False,
        cwd=at or module.directory,
        env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"},
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode != 0:
        raise BuildError(f"go {arguments[0]} of {module.path} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def _same_minor(binary: Path, wanted: str) -> bool:
    """Whether the binary reports the wanted minor version. One that reports none (JobSet's) is never taken."""
    arguments = {"kubectl": ["version", "--client"], "jobset-controller": None}.get(binary.name, ["--version"])
    if arguments is None:
        return False
    try:
        done = subprocess.run([binary, *arguments], check=False, text=True, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    reported = re.search(r"v?(\d+\.\d+)\.\d+", done.stdout)
    return reported is not None and reported[1] == ".".join(wanted.removeprefix("v").split(".")[:2])


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """Two builders of one module wait for each other instead of doing the work twice."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.build", description=__doc__.split("\n")[0])
    parser.add_argument(
        "asked", nargs="*", help=f"a binary or a folder of tools/: {', '.join(BINARIES)}; without, those for `make e2e`"
    )
    parser.add_argument(
        "--kubernetes", default="", metavar="MINOR", help="of this version of Kubernetes, not the usual"
    )
    given = parser.parse_args()
    folders = {module.folder: tuple(module.binaries) for module in MODULES}
    names = [name for one in given.asked or USUAL for name in ((one,) if one in BINARIES else folders.get(one, (one,)))]
    if unknown := [name for name in names if name not in BINARIES]:
        parser.error(f"no such binary: {', '.join(unknown)}")
    began = time.monotonic()
    try:
        names = list(of_kubernetes(given.kubernetes, names).values())
        ensure(names)
        for module in {BINARIES[name].folder for name in names if BINARIES[name].manifests}:
            manifests(module)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"all there after {time.monotonic() - began:.0f} s, cache: {cache_root()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
