"""The machines behind the API: images, network and the kinds of machine."""
