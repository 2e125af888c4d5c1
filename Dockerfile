# syntax=docker/dockerfile:1
# The image of the controller and of the command line. No compiler runs: every dependency has wheels for amd64 and arm64.
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=true -t REGISTRY/muster:0.1.0 .
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/muster \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
# What changes seldom first: the dependencies, at the versions and with the hashes of the lock file.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --no-install-project
COPY README.md LICENSE ./
COPY crds ./crds
COPY admission ./admission
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --no-editable \
    && uv export --frozen --no-default-groups --no-emit-project --format cyclonedx1.5 --output-file /opt/muster/sbom.cdx.json

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="muster" \
      org.opencontainers.image.description="Gang admission and quota for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/muster /opt/muster
ENV PATH=/opt/muster/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8081 8082 9443
ENTRYPOINT ["muster"]
CMD ["controller"]
