"""mosec: `server.py MODELS PORT MODEL`; one model a server, POST /inference over HTTP/1.1.

Settings, and why:
- Raw float32 bytes in and out: the cheapest thing that it can read, cheaper than its usual JSON or msgpack.
- Batches up to 64, and a wait of at most one millisecond for more (a batch leaves earlier when it is full): the shortest it allows.
- One worker process for each core, each running ONNX Runtime with one thread.
"""

import os
import sys

import numpy as np
import onnxruntime
from mosec import Server, Worker

if __name__ == "__main__" and not sys.argv[1].startswith("--"):
    models, port, model = sys.argv[1:4]
    # mosec reads its own options from the command line, and its workers run this file again with them.
    os.environ["BENCH_MODEL"] = f"{models}/{model}/1/model.onnx"
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--log-level", "warning"]


class Model(Worker):
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        path = os.environ["BENCH_MODEL"]
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def deserialize(self, data):
        return np.frombuffer(data, np.float32)

    def serialize(self, data):
        return data.tobytes()

    def forward(self, data):
        return list(self.session.run(None, {"x": np.stack(data)})[0])


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=os.cpu_count(), max_batch_size=64, max_wait_time=1)
    server.run()
