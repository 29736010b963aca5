from dstune.load.client.user import LoadUser


class ChatUser(LoadUser):
    path = "/v1/chat/completions"
