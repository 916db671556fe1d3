#!/bin/sh
# Everything that a GPU has to show, within 8 minutes, without a network, the most important first.
# Resumable: the same command goes on from what is in the file of results.
#
#     benchmarks/gpu.sh --out docs/results/gpu.jsonl [--minutes 8] [--data-dir DIR]
#     benchmarks/gpu.sh --dry-run --out dry.jsonl     every part in small on the CPU
#
# DIR holds cifar-10-batches-py/ (torchvision's layout) or train/CLASS/ and test/CLASS/ with images.
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
if [ -z "$PYTHON" ]; then
    PYTHON=python3
    [ -x "$root/.venv/bin/python" ] && PYTHON=$root/.venv/bin/python
fi
exec "$PYTHON" "$root/benchmarks/gpu.py" "$@"
