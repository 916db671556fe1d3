#!/usr/bin/env bash
# Locks what pyproject.toml asks for, hashes included, to docker/requirements.txt. Needs uv.
# torch, torchvision and what only comes with them (CUDA's libraries, triton) are left out: the Dockerfile
# installs that pair from its build arguments, and torch itself pins its CUDA libraries.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  echo "# Written by docker/lock.sh: do not edit."
  echo "torch==${TORCH_VERSION:-2.14.1}" | uv pip compile pyproject.toml --quiet --upgrade --extra all \
    --python-version 3.11 --generate-hashes --no-header --constraints - |
    awk '/^[^ ]/ { kept = !/^(torch|torchvision|triton|cuda-.*|nvidia-.*)==/ } kept'
} >docker/requirements.new
mv docker/requirements.new docker/requirements.txt
