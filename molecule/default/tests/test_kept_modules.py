"""The code of modules stays on the worker: decision 0008."""


def test_it_lies_in_memory_once_and_only_root_wrote_it(host):
    with host.sudo():
        place = host.file("/run/tpufleet/modules")

        assert len(place.listdir()) == 1
        assert place.user == "root"
        assert not place.mode & 0o022
        assert host.mount_point("/run").filesystem == "tmpfs"
