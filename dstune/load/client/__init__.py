"""Load client: what runs inside a Locust child process; the only place of locust and gevent.

`command` says how to start one, `control` speaks with the parent, `run` carries out a plan by
way of `pool`, `connection` and `answer`, and `user` is what `loadtests/*.py` import. Importing
this package or `command` brings in neither Locust nor gevent.
"""
