# docker build -t hyperfuse . && docker run --rm -v "$PWD:/data" hyperfuse fuse hsi.tif msi.tif -o fused.tif
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[cluster,demo,view]'
WORKDIR /data
ENTRYPOINT ["hyperfuse"]
