#!/usr/bin/env bash
# Installs PyTorch and JAX into a virtual environment for bench/peers/peers.c: some 5 GB, a minute or more.
#   install.sh FOLDER
#
# torch of the package index is the CUDA build.  Its import opens the libraries below; the rest of its dependencies for
# GPUs is left out.
set -euo pipefail
folder=$1
python3 -m venv "$folder"
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" numpy sympy networkx jinja2 typing_extensions filelock fsspec 'setuptools>=77' jax==0.10.2 jaxlib==0.10.2
"${pip[@]}" 'cuda-toolkit[cublas,cudart,cufft,cufile,cupti,cusparse,nvjitlink,nvrtc]==13.2.2' \
    nvidia-cudnn-cu13==9.26.0.51 nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2
"${pip[@]}" --no-deps torch==2.15.0
"$folder/bin/python" -c 'import torch, jax; print("torch", torch.__version__, "jax", jax.__version__)'
# MKL has its AVX-512 kernels for processors of Intel alone; loaded before torch, this gives them to all.
echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | cc -shared -fPIC -x c - -o "$folder/mkl_any_vendor.so"
touch "$folder/ready"
