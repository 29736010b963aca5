"""Linear layers over weights packed once for a precision: fp32, bf16, fp16 and W8A8 int8."""
