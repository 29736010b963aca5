from dstune.load.client.user import LoadUser


class BatchUser(LoadUser):
    path = "/v1/completions"
