"""The Cloud TPU REST API v2 on loopback, with real machines behind it.

Usage::

    server = create_server(directory, machines, port)   # listens, writes the key file
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()                                    # resumes a killed server's work
    server.serve()                                      # returns some seconds after stop

``server.endpoint`` is the address for clients. Each resource has a module (nodes, operations,
locations, admin, oauth) with its API methods and their routes. ``server`` collects the routes,
``http_front`` serves HTTP, ``lifecycle`` does slow work in the background, and ``database`` and the
``*_table`` modules store the state.
"""
