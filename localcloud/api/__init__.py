"""The Cloud TPU REST API v2 on loopback, with real machines behind it.

Usage::

    server = create_server(directory, machines, port)   # listens, writes the key file
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()                                    # resumes a killed server's work
    server.serve()                                      # returns some seconds after stop

``server.endpoint`` is the address for clients. Each resource's file (nodes, operations, locations,
admin, oauth) has its methods and routes; ``server`` collects the routes, ``http_front`` is HTTP,
``lifecycle`` does slow work in the background, ``database`` and the ``*_table`` files store state.
"""

from localcloud.api.server import AlreadyServedError, ApiServer, create_server

__all__ = ["AlreadyServedError", "ApiServer", "create_server"]
