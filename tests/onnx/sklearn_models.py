"""Models of scikit-learn, converted by skl2onnx, by Kiln and by onnxruntime: labels that are strings and labels that
are integers, scores as lists of maps and as tables.  For a run by hand; its Python has skl2onnx, scikit-learn and
onnxruntime.  Arguments: the command kiln, a folder."""
import os
import re
import subprocess
import sys

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (AdaBoostClassifier, ExtraTreesClassifier, GradientBoostingClassifier,
                              RandomForestClassifier, RandomForestRegressor)
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

MODELS = (LogisticRegression(max_iter=300), make_pipeline(StandardScaler(), LogisticRegression()),
          DecisionTreeClassifier(max_depth=4), RandomForestClassifier(10), ExtraTreesClassifier(5),
          GradientBoostingClassifier(n_estimators=5), MLPClassifier(max_iter=200), KNeighborsClassifier(),
          GaussianNB(), make_pipeline(MinMaxScaler(), SGDClassifier()), RidgeClassifier(),
          LinearDiscriminantAnalysis(), AdaBoostClassifier(n_estimators=5),
          make_pipeline(StandardScaler(), SVC()), SVC(kernel="poly", degree=2), SVC(kernel="linear", probability=True),
          SVC(kernel="sigmoid", gamma=0.01), NuSVC(nu=0.2, probability=True))
REGRESSORS = (RandomForestRegressor(5), LinearRegression(), SVR(), NuSVR(kernel="poly"), OneClassSVM(gamma=0.5))


def by_kiln(kiln, path, folder, count):
    """The results, and the texts that the command prints of those that are strings."""
    command = [kiln, "run", path, "--input", "0=%s/x.npy" % folder]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for i in range(count):
        command += ["--output", "%d=%s/y%d.npy" % (i, folder, i)]
    subprocess.run(command, check=True, capture_output=True)
    texts = [re.findall(r'"([^"]*)"', line) for line in printed.splitlines() if line.startswith("  texts")]
    return [np.load("%s/y%d.npy" % (folder, i)) for i in range(count)], texts


def compare(kiln, folder, name, model, x, zipmap):
    path = os.path.join(folder, "model.onnx")
    classifies = hasattr(model, "classes_")
    with open(path, "wb") as f:
        options = {"zipmap": zipmap} if classifies else None
        f.write(to_onnx(model, x[:1], options=options).SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    want = session.run(None, {session.get_inputs()[0].name: x})
    got, texts = by_kiln(kiln, path, folder, len(want))
    if isinstance(want[-1], list):
        want[-1] = np.array([[row[k] for k in sorted(row)] for row in want[-1]])
    equal = not classifies or list(want[0]) == (texts[0] if texts else list(got[0]))
    worst = float(np.abs(got[-1] - want[-1]).max())
    print("%s: labels %s, scores differ by %.1e" % (name, "equal" if equal else "DIFFER", worst), flush=True)
    return equal and worst < 1e-5


def main(kiln, folder):
    os.makedirs(folder, exist_ok=True)
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    np.save(os.path.join(folder, "x.npy"), x[::5])
    ok = True
    for labels in (y, np.array(["setosa", "versicolor", "virginica"])[y]):
        for model in MODELS + (REGRESSORS if labels is y else ()):
            model.fit(x, labels)
            for zipmap in (True, False) if hasattr(model, "classes_") else (False,):
                name = "%s, %s%s" % (type(model).__name__, "integers" if labels is y else "strings",
                                     ", maps" if zipmap else "")
                ok &= compare(kiln, folder, name, model, x[::5], zipmap)
    return 0 if ok else 1


sys.exit(main(*sys.argv[1:]))
