"""The Cloud TPU REST API v2 on loopback, with real machines behind it.

How a command line runs it::

    server = create_server(directory, machines, port)   # takes the port, writes the key file
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()                                    # what a killed server left goes on
    server.serve()                                      # returns some seconds after stop

``server.endpoint`` is the address to write down for clients. Each resource has its file (nodes,
operations, locations, admin, oauth) and gives its rows of the table of routes; ``server`` puts the
table together, ``http_front`` is HTTP, ``lifecycle`` does what takes time, ``database`` and the
``*_table`` files remember.
"""

from localcloud.api.server import AlreadyServedError, ApiServer, create_server

__all__ = ["AlreadyServedError", "ApiServer", "create_server"]
