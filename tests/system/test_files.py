from __future__ import annotations

import json
import os

import pytest

from gcdbench.system.files import write_atomically, write_json


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})

    def fail(stream):
        stream.write(b"half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(path.parent) == ["x.json"]
