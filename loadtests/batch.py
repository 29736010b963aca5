"""Batch load: long prompts and answers, one after the other without a pause.

    locust -f loadtests/batch.py --host http://127.0.0.1:8000 --users 32

As `loadtests/chat.py`, for plain completions.
"""

from dstune.load.client.user import LoadUser


class BatchUser(LoadUser):
    """Sends completions."""

    path = "/v1/completions"
    prompt_words = 256
    output_tokens = 256
