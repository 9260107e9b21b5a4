# Targets: `lensd` (the parts of lensd, the default) and `engine` (a vLLM image with the plain wheel added, which changes nothing else in it).
ARG PYTHON_IMAGE=python:3.11-slim
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY requirements/dev.lock requirements/
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/dev.lock
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY lensd lensd
COPY collectors collectors
COPY dashboards dashboards
COPY runbooks runbooks
RUN /build/bin/python -m build --wheel --no-isolation --outdir /wheel

FROM ${ENGINE_IMAGE} AS engine
COPY --from=wheel /wheel /wheel
RUN python3 -m pip install --no-deps --no-cache-dir /wheel/*.whl

FROM ${PYTHON_IMAGE} AS lensd
COPY requirements/all.lock /requirements/
RUN pip install --no-cache-dir --require-hashes -r /requirements/all.lock
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps --no-cache-dir /wheel/*.whl \
    && useradd --uid 1000 --create-home lensd \
    && install -d -o lensd -g lensd /var/lib/lensd /var/lib/lensd-keys
USER lensd
WORKDIR /home/lensd
CMD ["lensd", "--help"]
