"""A classifier of digits, quantized by onnxruntime's quantize_static in three ways, by Kiln and by onnxruntime: how many
of 1,000 labels differ, and the largest difference of a result, in steps of its quantization.  For a run by hand; the
models and an input of each stay in the folder: `KILN_TEST_MODELS=FOLDER ./run bench models` then measures them.
Arguments: the command kiln, a folder, the classifier (.onnx, of images [1, 1, 28, 28]), images (IDX, gzip)."""
import gzip
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

IMAGES, AT_ONCE = 1000, 250
WAYS = (("qdq_u8s8", QuantFormat.QDQ, QuantType.QUInt8, True), ("qdq_s8s8", QuantFormat.QDQ, QuantType.QInt8, False),
        ("qop_u8s8", QuantFormat.QOperator, QuantType.QUInt8, False))


class Images(CalibrationDataReader):
    def __init__(self, name, images):
        self.given = iter([{name: image} for image in images])

    def get_next(self):
        return next(self.given, None)


def quantize(model, folder, images):
    """The paths of the quantized models."""
    pre = os.path.join(folder, "pre.onnx")
    quant_pre_process(model, pre, skip_symbolic_shape=True)
    name = onnx.load(pre).graph.input[0].name
    paths = []
    for way, form, activations, columns in WAYS:
        paths.append(os.path.join(folder, "digits_%s.onnx" % way))
        quantize_static(pre, paths[-1], Images(name, images), quant_format=form, activation_type=activations,
                        weight_type=QuantType.QInt8, per_channel=columns)
        np.save(paths[-1] + ".0.npy", images[0])
    os.remove(pre)
    return paths


def by_onnxruntime(path, images):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.array([session.run(None, {name: image})[0].ravel() for image in images])


def by_kiln(kiln, path, images, folder):
    results = []
    for first in range(0, len(images), AT_ONCE):
        command = [kiln, "run", path]
        some = range(first, min(first + AT_ONCE, len(images)))
        for i in some:
            file = os.path.join(folder, "image%d.npy" % (i - first))
            np.save(file, images[i])
            command += ["--input", "0=" + file, "--output", "0=" + os.path.join(folder, "scores%d.npy" % (i - first))]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        for i in some:
            file = os.path.join(folder, "scores%d.npy" % (i - first))
            results.append(np.load(file).ravel())
            os.remove(file)
            os.remove(os.path.join(folder, "image%d.npy" % (i - first)))
    return np.array(results)


def main(kiln, folder, model, images):
    os.makedirs(folder, exist_ok=True)
    pixels = np.frombuffer(gzip.open(images).read()[16:], np.uint8).reshape(-1, 1, 1, 28, 28)
    scaled = ((pixels / 255 - 0.1307) / 0.3081).astype(np.float32)
    differ = 0
    for path in quantize(model, folder, scaled[-200:]):
        want = by_onnxruntime(path, scaled[:IMAGES])
        got = by_kiln(kiln, path, scaled[:IMAGES], folder)
        steps = np.diff(np.unique(want))
        step = float(steps[steps > 1e-5].min())
        other = int((got.argmax(1) != want.argmax(1)).sum())
        differ += other
        print("%s: %d of %d labels differ, results by at most %.2f steps" %
              (os.path.basename(path), other, IMAGES, float(np.abs(got - want).max()) / step), flush=True)
    return differ != 0


sys.exit(main(*sys.argv[1:]))
