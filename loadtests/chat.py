"""Chat load: short prompts, short answers, token by token.

    locust -f loadtests/chat.py --host http://127.0.0.1:8000

Each of Locust's users is one conversation partner: it sends, reads the whole answer, thinks
(`--think-s`) and sends again. The web UI shows each request (POST, its time until the last token)
and beside it TTFT and TPOT. Locust rounds its percentiles, and such a closed loop waits for a
slow server: `dstune loadtest` runs this very file by a schedule and keeps the raw samples.
"""

from dstune.load.client.user import LoadUser


class ChatUser(LoadUser):
    """Sends chat completions."""

    path = "/v1/chat/completions"
    prompt_words = 96
    output_tokens = 64
