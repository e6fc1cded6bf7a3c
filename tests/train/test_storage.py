"""train.storage.new_directory, when several processes create the same directory at once."""

from train.storage import new_directory


def test_the_directory_of_the_process_that_finishes_first_stays(tmp_path):
    directory = tmp_path / "corpus"
    with new_directory(directory) as second:
        (second / "file").write_text("second")
        with new_directory(directory) as first:
            (first / "file").write_text("first")

    assert (directory / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
