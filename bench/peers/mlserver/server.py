"""MLServer with a small runtime of ours: `server.py MODELS PORT SCRATCH`.

Settings, and why:
- Adaptive batching up to 64 rows with a wait of one millisecond: it has no batching without a wait.
- `parallel_workers: 0`: the model runs in the server's process. Its pool of workers adds a hop between processes, which costs these
  small models more than it brings.
- Metrics' and HTTP's ports are opened, since it can't be told not to, and not asked.
"""

import json
import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    models, port, scratch = Path(sys.argv[1]).resolve(), int(sys.argv[2]), Path(sys.argv[3])
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": 0,
        "grpc_port": port,
        "metrics_port": int(sys.argv[4]),
        "parallel_workers": 0,
    }
    (scratch / "settings.json").write_text(json.dumps(settings))
    for name in ("tiny", "mid"):
        folder = scratch / name
        folder.mkdir()
        shutil.copy(Path(__file__).with_name("runtime.py"), folder)
        model = {
            "name": name,
            "implementation": "runtime.OnnxModel",
            "max_batch_size": 64,
            "max_batch_time": 0.001,
            "parameters": {"uri": str(models / name / "1" / "model.onnx")},
        }
        (folder / "model-settings.json").write_text(json.dumps(model))
    os.chdir(scratch)
    start = str(Path(sys.executable).with_name("mlserver"))
    os.execv(start, [start, "start", "."])


if __name__ == "__main__":
    main()
