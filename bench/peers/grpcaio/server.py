"""A plain grpc.aio server, as one writes it in an afternoon: `server.py MODELS PORT`.

Settings, and why:
- Our generated stubs of the same protocol, raw contents only, no checks of what comes.
- No batching: each request runs by itself, on the event loop, since handing it to a thread costs more than `tiny` takes.
- One process: one port, one event loop.
"""

import asyncio
import sys
from pathlib import Path

import grpc
import numpy as np
import onnxruntime

from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc


class Inference(rpc.GRPCInferenceServiceServicer):
    def __init__(self, models: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.sessions = {
            name: onnxruntime.InferenceSession(
                models / name / "1" / "model.onnx", options, providers=["CPUExecutionProvider"]
            )
            for name in ("tiny", "mid")
        }

    async def ModelInfer(self, request, context):
        rows = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(request.inputs[0].shape)
        (outputs,) = self.sessions[request.model_name].run(None, {"x": rows})
        described = pb.ModelInferResponse.InferOutputTensor(name="y", datatype="FP32", shape=outputs.shape)
        return pb.ModelInferResponse(
            model_name=request.model_name, outputs=[described], raw_output_contents=[outputs.tobytes()]
        )


async def main() -> None:
    server = grpc.aio.server()
    rpc.add_GRPCInferenceServiceServicer_to_server(Inference(Path(sys.argv[1])), server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
