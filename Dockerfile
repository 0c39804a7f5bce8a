# docker build -t hyperfuse . && docker run --rm -v "$PWD:/data" hyperfuse fuse hsi.tif msi.tif -o fused.tif
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml constraints.txt hatch_build.py README.md LICENSE ./
COPY src src
# The compiler is needed once, for src/hyperfuse/compiled.c.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[cluster,demo,view]' \
 && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /data
ENTRYPOINT ["hyperfuse"]
