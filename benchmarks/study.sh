#!/bin/sh
# The accuracy study of docs/results.md, the most valuable runs first. Resumable: what is in
# docs/results/*.jsonl is not run again.
#
#     benchmarks/study.sh DATA_DIR [JOBS]
#
# DATA_DIR holds MNIST/raw/*-ubyte (torchvision's layout) and cifar10/{train,test}/CLASS/*.jpg.
set -e
data=${1:?usage: benchmarks/study.sh DATA_DIR [JOBS]} jobs=${2:-2}
cd "$(dirname "$0")/.."
out=${OUT:-docs/results} python=${PYTHON:-python}
# The exchange is pinned: "auto" may take another one during the warm-up, which changes last bits.
common="--workers 4 --jobs $jobs --set exchange=allgather"

mnist() {
    "$python" benchmarks/accuracy.py --model lenet5 --data mnist --data-dir "$data" $common \
        --batch-size 64 --seeds 3 --out "$out/mnist-lenet5.jsonl" "$@"
}
cifar10() {
    "$python" benchmarks/accuracy.py --data imagefolder --data-dir "$data/cifar10" \
        --name "cifar10 (JPEG copy)" --image-size 32 $common --batch-size 32 \
        --set channels_last=true "$@"
}
cifarnet() {
    cifar10 --model cifarnet --out "$out/cifar10-cifarnet.jsonl" "$@"
}
batchnorm() {
    cifar10 --model cifarnet_batchnorm:cifarnet_batchnorm \
        --out "$out/cifar10-cifarnet-batchnorm.jsonl" "$@"
}

three="--methods dense,ggs,gs"
mnist --epochs 3 $three --density-warmups "0,1 epoch"
# One seed of everything that matters, then all three.
for seeds in 1 3; do
    mnist --epochs 3 $three --optimizers amsgrad --density-warmups "1 epoch" --seeds $seeds
    mnist --epochs 10 $three --seeds $seeds
    cifarnet --epochs 8 $three --seeds $seeds
done
mnist --epochs 3 $three --optimizers amsgrad --density-warmups "0,1 epoch"
mnist --epochs 10 $three --optimizers amsgrad
mnist --epochs 3 $three,dgc --optimizers sgd,rmsprop,adagrad --densities 1e-3
mnist --epochs 3 $three,dgc --optimizers sgd --lr 0.01 --densities 1e-3
# Ablations.
mnist --epochs 3 --methods dense,ggs --densities 1e-3 --scopes global,tensor
mnist --epochs 3 --methods dense,ggs --densities 1e-3 --values fp32,bf16,int8,int4,sign
mnist --epochs 10 --methods dense,ggs --densities 1e-4 --density-warmups "4 epochs"
# Near convergence.
cifarnet --epochs 20 $three --density-warmups "1 epoch,4 epochs" --seeds 3
cifarnet --epochs 20 $three --optimizers amsgrad --seeds 1
# BN-LG: the workers' own batch-norm layers, their mean, and layers that are exchanged.
batchnorm --epochs 4 --methods dense,ggs --densities 1e-3 --batchnorms average,dense --seeds 1
# The paper's two large models, as far as a CPU allows: far from convergence.
cifar10 --model alexnet --out "$out/cifar10-alexnet.jsonl" --epochs 3 $three --densities 1e-3 --seeds 1
cifar10 --model densenet121 --out "$out/cifar10-densenet121.jsonl" --batch-size 16 --steps 80 $three \
    --densities 1e-3 --density-warmups "20 steps" --seeds 1
