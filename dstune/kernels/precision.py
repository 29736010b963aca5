"""The precisions of weights that kernels know, and the element types of a KV cache."""

import torch

FLOAT_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = (*FLOAT_PRECISIONS, "int8", "int8_weight_only", "fp8")
KV_DTYPES = {**FLOAT_PRECISIONS, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
FP8_CAPABILITY = 89  # e4m3 on tensor cores since Ada
