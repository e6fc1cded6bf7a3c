"""The Linux machines behind the API: their images, their network and the kinds of machine."""
