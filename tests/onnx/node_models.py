"""Writes the node tests of the installed onnx package, models with inputs and outputs, into FOLDER/node, as
api_onnx.c reads them.  Arguments: FOLDER."""
import os
import sys

import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases


def as_message(value, info):
    if isinstance(value, TensorProto):
        return value
    if info.type.HasField("sequence_type"):
        return numpy_helper.from_list(value, info.name)
    if info.type.HasField("optional_type"):
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(value, info.name)


def write(path, message):
    with open(path, "wb") as f:
        f.write(message.SerializeToString())


def main(folder):
    written = 0
    for case in collect_testcases():
        at = os.path.join(folder, "node", case.name)
        os.makedirs(at, exist_ok=True)
        write(os.path.join(at, "model.onnx"), case.model)
        for i, (inputs, outputs) in enumerate(case.data_sets):
            data = os.path.join(at, "test_data_set_%d" % i)
            os.makedirs(data, exist_ok=True)
            for k, v in enumerate(inputs):
                write(os.path.join(data, "input_%d.pb" % k), as_message(v, case.model.graph.input[k]))
            for k, v in enumerate(outputs):
                write(os.path.join(data, "output_%d.pb" % k), as_message(v, case.model.graph.output[k]))
        written += 1
    print("onnx %s: %d models" % (onnx.__version__, written))


main(sys.argv[1])
