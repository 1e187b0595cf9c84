# The server as a container.
#
#   docker build -t reason-spec .                                               # CPU
#   docker build -t reason-spec:gpu --build-arg TORCH=gpu .                     # NVIDIA GPUs, torch engine
#   docker build -t reason-spec:vllm --build-arg TORCH=gpu --build-arg EXTRAS=gpu --build-arg LOCK=cpu .
#
# The driver comes from the host (`docker run --gpus all`); torch's wheels bring the rest of CUDA.
FROM python:3.12-slim-bookworm AS build

ARG TORCH=cpu
ARG TORCH_VERSION=2.13.0
# vLLM wants other versions than the torch engine; those of requirements/cpu.txt are for it.
ARG LOCK=dev
ARG EXTRAS=

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1

WORKDIR /src
RUN python -m venv /opt/reason-spec
COPY requirements/uv.txt requirements/
RUN /opt/reason-spec/bin/python -m pip install --require-hashes -r requirements/uv.txt
COPY scripts/install_torch.py scripts/
RUN /opt/reason-spec/bin/python scripts/install_torch.py --build "$TORCH" --version "$TORCH_VERSION"
COPY . .
RUN /opt/reason-spec/bin/uv pip install --python /opt/reason-spec/bin/python --constraints "requirements/$LOCK.txt" \
    "reason-spec[$EXTRAS] @ ." ./reason-spec-weights

FROM python:3.12-slim-bookworm

ARG TORCH=cpu
# Triton compiles its launchers with a C compiler of the machine.
# hadolint ignore=DL3008
RUN if [ "$TORCH" = gpu ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --create-home --home-dir /var/lib/reason-spec --uid 1000 reason-spec

COPY --from=build /opt/reason-spec /opt/reason-spec
ENV PATH=/opt/reason-spec/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /var/lib/reason-spec
EXPOSE 8000
# Loading a large model takes minutes, in which the container is not unhealthy.
HEALTHCHECK --start-period=15m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["reason-spec"]
# Others than the container itself need a key: -e REASON_SPEC_API_KEY, or --api-keys with a mounted file.
CMD ["serve", "--host", "0.0.0.0"]
