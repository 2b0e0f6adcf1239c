"""A model of Triton's Python backend: joins the rows of its requests, runs them once, gives each its own back."""

import json
import os
import sys

# The stub that runs this file knows only the base installation of Python, not the environment that Triton came in.
sys.path.append(os.environ["BENCH_PACKAGES"])

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = json.loads(args["model_config"])["parameters"]["onnx"]["string_value"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        (outputs,) = self.session.run(None, {"x": np.concatenate(inputs) if len(inputs) > 1 else inputs[0]})
        responses, first = [], 0
        for rows in inputs:
            last = first + len(rows)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", outputs[first:last])]))
            first = last
        return responses
