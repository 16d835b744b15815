FROM python:3.13-slim-bookworm

# Isolates custom tools: see docs/tools-and-sandbox.md.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt . \
    && rm -rf /build

# A number as well as a name: a volume keeps its owner when the image is built anew.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /data
USER holdfast
WORKDIR /home/holdfast

# Reached from outside the container, so it does not start without HOLDFAST_API_KEY.
ENV HOLDFAST_DATA_DIR=/data \
    HOLDFAST_HOST=0.0.0.0 \
    HOLDFAST_PORT=8283
VOLUME /data
EXPOSE 8283

# Without a client of the system, and without the environment's proxy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['HOLDFAST_PORT']), timeout=3); c.request('GET', '/v1/health/'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["holdfast"]
CMD ["serve"]
