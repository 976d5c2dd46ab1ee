"""Writes models of one operator of com.microsoft or ai.onnx.ml each, with random inputs and what onnxruntime gives for
them, into FOLDER/node, as api_onnx.c reads them.  Arguments: FOLDER SEED."""
import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

rng = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)
u8 = lambda *shape: rng.integers(0, 256, shape).astype(np.uint8)
i8 = lambda *shape: rng.integers(-128, 128, shape).astype(np.int8)
step = lambda: np.array(rng.uniform(0.01, 0.05), np.float32)
ints = lambda *v: np.array(v, np.int32)
cases, graphs = [], []


def case(op, inputs, outputs=1, domain="com.microsoft", name="", **attributes):
    """inputs: arrays, None where one is left out; outputs: a count, or whether each of them is asked for."""
    cases.append((op, inputs, [True] * outputs if isinstance(outputs, int) else outputs, domain, name, attributes))


def activations():
    x, bias = f32(3, 8), f32(8)
    case("BiasGelu", [x, bias])
    case("FastGelu", [x, bias])
    case("FastGelu", [x], name="plain")
    case("QuickGelu", [x], alpha=1.5)
    case("Gelu", [x])


def norms():
    x, skip, g, b, bias = f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)
    case("SkipLayerNormalization", [x, skip, g, b, bias], [True, False, False, True], epsilon=1e-5)
    case("SkipLayerNormalization", [x, skip, g], name="plain")
    case("SkipSimplifiedLayerNormalization", [x, skip, g, bias], [True, False, False, True], epsilon=1e-5)
    case("SimplifiedLayerNormalization", [x, g], domain="", axis=-1, epsilon=1e-5)
    ids = rng.integers(0, 10, (2, 5)).astype(np.int32)
    segments = rng.integers(0, 2, (2, 5)).astype(np.int32)
    mask = ints([1, 1, 1, 1, 0], [1, 1, 0, 0, 0])
    case("EmbedLayerNormalization", [ids, segments, f32(10, 8), f32(6, 8), f32(2, 8), g, b, mask], 2, epsilon=1e-5)


def products():
    case("FusedMatMul", [f32(2, 4, 3), f32(2, 5, 4)], transA=1, transB=1, alpha=0.5)
    case("FusedMatMul", [f32(3, 2, 4), f32(2, 4, 5)], name="batch", transBatchA=1)
    case("FusedGemm", [f32(3, 4), f32(4, 5), f32(5)], activation="LeakyRelu", activation_alpha=0.2, alpha=0.5)
    x, w, b, z = f32(1, 3, 6, 6), f32(4, 3, 3, 3), f32(4), f32(1, 4, 6, 6)
    for activation, numbers in (("Relu", None), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.75]),
                                ("HardSigmoid", [0.3, 0.4]), ("Tanh", None), ("Sigmoid", None)):
        attributes = {"activation_params": numbers} if numbers else {}
        case("FusedConv", [x, w, b, z] if activation == "Relu" else [x, w, b], name=activation,
             activation=activation, pads=[1, 1, 1, 1], kernel_shape=[3, 3], **attributes)
    for bits in (4, 8):
        for k, n, block in ((32, 5, 16), (40, 3, 32)):
            blocks = -(-k // block)
            zeros = u8(n * (-(-blocks * bits // 8)))
            a, q, s = f32(2, 3, k), u8(n, blocks, block * bits // 8), np.abs(f32(n * blocks)) * 0.1
            for name, more in (("", []), ("zero", [zeros])):
                case("MatMulNBits", [a, q, s] + more, name="%d_%d_%s" % (bits, k, name), K=k, N=n, bits=bits,
                     block_size=block)
    case("GatherBlockQuantized", [u8(6, 16), ints([0, 5], [2, 2]), np.abs(f32(6, 2)) * 0.1], bits=4, block_size=16,
         gather_axis=0, quantize_axis=1)


def steps():
    a, b = u8(2, 3, 4), u8(3, 4)
    zero = lambda: np.array(rng.integers(100, 156), np.uint8)
    for op in ("QLinearAdd", "QLinearMul"):
        case(op, [a, step(), zero(), b, step(), zero(), np.array(step() * 4), zero()])
    case("QLinearSigmoid", [a, step(), zero(), np.array(1 / 256, np.float32), np.array(0, np.uint8)])
    case("QLinearLeakyRelu", [i8(2, 5), step(), np.array(3, np.int8), step(), np.array(-4, np.int8)], alpha=0.2)
    case("QLinearSoftmax", [a, step(), zero(), np.array(1 / 256, np.float32), np.array(0, np.uint8)], axis=-1, opset=13)
    case("QLinearConcat", [step(), zero(), a, step(), zero(), u8(2, 5, 4), step(), zero()], axis=1)
    image = u8(1, 3, 6, 6)
    case("QLinearAveragePool", [image, step(), zero(), step(), zero()], kernel_shape=[2, 2], strides=[2, 2])
    case("QLinearGlobalAveragePool", [image, step(), zero(), step(), zero()], channels_last=0)
    case("DynamicQuantizeMatMul", [f32(3, 8), u8(8, 5), step(), zero(), f32(5)])
    case("MatMulIntegerToFloat", [u8(3, 8), u8(8, 5), step(), step(), zero(), zero(), f32(5)])
    case("QGemm", [u8(3, 8), step(), zero(), i8(8, 5), np.abs(f32(5)) * np.float32(0.1), np.zeros(5, np.int8),
                   rng.integers(-900, 900, 5).astype(np.int32), step(), zero()], alpha=0.5)
    case("QGemm", [u8(8, 3), step(), zero(), u8(5, 8), step(), zero()], name="floats", transA=1, transB=1)
    case("MatMulIntegerToFloat", [u8(3, 8), i8(8, 5), step(), np.abs(f32(5)) * 0.1, zero()], name="columns")


def attention():
    B, S, H, D = 2, 4, 3, 8
    q, k, v, bias = f32(B, S, H * D), f32(B, 6, H * D), f32(B, 6, H * D), f32(3 * H * D)
    case("MultiHeadAttention", [q, k, v], num_heads=H)
    case("MultiHeadAttention", [q, k, v, bias, ints([1] * 6, [1] * 4 + [0] * 2)], name="mask", num_heads=H)
    case("MultiHeadAttention", [q, k, v, None, None, f32(1, H, S, 6)], name="bias", num_heads=H, scale=0.3)
    past = [f32(B, H, 5, D), f32(B, H, 5, D)]
    case("MultiHeadAttention", [q, f32(B, S, H * D), f32(B, S, H * D), bias, None, None] + past, 3, name="past",
         num_heads=H, unidirectional=1)
    x, w = f32(B, S, 10), f32(10, 3 * H * D) * 0.3
    case("Attention", [x, w, bias], num_heads=H)
    case("Attention", [x, w, bias, ints(4, 2)], name="lengths", num_heads=H)
    case("Attention", [x, w, bias, None, f32(2, B, H, 5, D)], 2, name="past", num_heads=H, unidirectional=1)
    x, w, zero = u8(B, S, 10), i8(10, 3 * H * D), np.array(99, np.uint8)
    case("QAttention", [x, w, bias, step(), step()], num_heads=H)
    case("QAttention", [x, u8(10, 3 * H * D), bias, step(), step(), ints(4, 2), zero, zero], name="lengths",
         num_heads=H)
    case("QAttention", [x, w, bias, step(), step(), None, zero, np.array(-3, np.int8), f32(2, B, H, 5, D)], 2,
         name="past", num_heads=H, unidirectional=1)
    case("QAttention", [x, w, bias, step(), np.abs(f32(3 * H * D)) * np.float32(0.05), None, zero,
                        np.zeros(3 * H * D, np.int8)], name="columns", num_heads=H)
    cosine, sine = np.cos(f32(16, D // 2)), np.sin(f32(16, D // 2))
    for interleaved in (0, 1):
        case("RotaryEmbedding", [q, np.array([[0, 1, 2, 3], [5, 6, 7, 8]], np.int64), cosine, sine],
             name="rows%d" % interleaved, interleaved=interleaved)
    case("RotaryEmbedding", [f32(B, H, S, D), np.array([3], np.int64), cosine, sine], name="from")
    G, D = 1, 16
    cosine, sine = np.cos(f32(16, D // 2)), np.sin(f32(16, D // 2))
    q = f32(B, S, H * D)
    for name, more in (("plain", {}), ("rotary", {"do_rotary": 1}), ("window", {"local_window_size": 2}),
                       ("cap", {"softcap": 2.0}), ("pairs", {"do_rotary": 1, "rotary_interleaved": 1})):
        angles = [cosine, sine] if "do_rotary" in more else []
        heads = dict(num_heads=H, kv_num_heads=G, **more)
        case("GroupQueryAttention", [q, f32(B, S, G * D), f32(B, S, G * D), None, None, ints(3, 3),
                                     np.array(S, np.int32)] + angles, 3, name="prompt_" + name, **heads)
        for batch, last, length, rows in ((B, [7, 7], 8, 1), (B, [7, 4], 8, 1), (1, [7], 12, 1), (1, [9], 8, 2),
                                          (1, [6], 8, 3)):
            total = max(last) + 1
            past = [f32(batch, G, length, D), f32(batch, G, length, D)]
            for cache in past:  # what is behind a row's keys is zeros in onnxruntime's result, and kept in Kiln's
                for b in range(batch):
                    cache[b, :, last[b] + 1 - rows:] = 0
            case("GroupQueryAttention", [f32(batch, rows, H * D), f32(batch, rows, G * D), f32(batch, rows, G * D),
                                         past[0], past[1], ints(*last), np.array(total, np.int32)] + angles, 3,
                 name="%s_%d_%d_%d_%d" % (name, batch, last[-1], length, rows), **heads)
    packed = f32(B, S, (H + 2 * G) * D)
    case("GroupQueryAttention", [packed, None, None, None, None, ints(3, 3), np.array(S, np.int32)], 3, name="packed",
         num_heads=H, kv_num_heads=G)


def tables():
    x = f32(3, 5)
    case("ArrayFeatureExtractor", [x, np.array([[0, 3]], np.int64)], domain="ai.onnx.ml")
    case("Binarizer", [x], domain="ai.onnx.ml", threshold=0.25)
    case("Scaler", [x], domain="ai.onnx.ml", offset=list(f32(5)), scale=list(f32(5)))
    for norm in ("MAX", "L1", "L2"):
        case("Normalizer", [np.abs(x)], domain="ai.onnx.ml", name=norm, norm=norm)
    case("LinearRegressor", [x], domain="ai.onnx.ml", targets=2, coefficients=list(f32(10)), intercepts=list(f32(2)))
    for name, keys in (("ints", [3, 1, 4, 9]), ("few", [5])):
        case("LabelEncoder", [rng.integers(0, 10, (3, 4))], domain="ai.onnx.ml", name=name, keys_int64s=keys,
             values_floats=list(f32(len(keys))), default_float=0.5)
    case("LabelEncoder", [np.array([1, -4, 2.5, 7], np.float32)], domain="ai.onnx.ml", name="floats",
         keys_floats=[2.5, -4, 1], values_int64s=[10, 20, 30], default_int64=-7)


def forest(prefix, depth, targets, modes=("BRANCH_LEQ",), positive=False):
    """Attributes of random trees: all the nodes of the upper levels, then leaves with a weight for each of `targets`."""
    a = {"nodes_" + k: [] for k in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids",
                                    "falsenodeids", "missing_value_tracks_true")}
    w = {prefix + k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(4):
        inner = (1 << (depth + tree % 2)) - 1
        for i in range(2 * inner + 1):
            leaf = i >= inner
            row = (tree, i, 0 if leaf else int(rng.integers(0, 5)), "LEAF" if leaf else str(rng.choice(modes)),
                   0.0 if leaf else float(np.float32(rng.standard_normal())), 0 if leaf else 2 * i + 1,
                   0 if leaf else 2 * i + 2, 0 if leaf else int(rng.integers(0, 2)))
            for key, v in zip(list(a), row):
                a[key].append(v)
            for c in targets if leaf else ():
                weight = float(np.float32(rng.standard_normal()))
                for key, v in zip(list(w), (tree, i, c, abs(weight) / 8 if positive else weight)):
                    w[key].append(v)
    return dict(a, **w)


def ensemble(depth, targets, modes, dtype):
    """Attributes of TreeEnsemble: two trees of all nodes of the upper levels."""
    inner = (1 << depth) - 1
    keys = ("nodes_featureids", "nodes_truenodeids", "nodes_trueleafs", "nodes_falsenodeids", "nodes_falseleafs",
            "nodes_missing_value_tracks_true")
    a, mode, members = {k: [] for k in keys}, [], []
    for tree in range(2):
        for i in range(inner):
            last = 2 * i + 1 >= inner
            to = [2 * i + 1 - inner + tree * (inner + 1) if last else 2 * i + 1 + tree * inner] * 2
            row = (int(rng.integers(0, 5)), to[0], int(last), to[1] + 1, int(last), int(rng.integers(0, 2)))
            for key, v in zip(keys, row):
                a[key].append(v)
            mode.append(int(rng.choice(modes)))
            if mode[-1] == 6:
                members += list(rng.integers(-2, 3, int(rng.integers(1, 4)))) + [np.nan]
    numbers = lambda x: numpy_helper.from_array(np.array(x, dtype))
    if members:
        a["membership_values"] = numbers(members)
    return dict(a, nodes_modes=numpy_helper.from_array(np.array(mode, np.uint8)), n_targets=targets,
                nodes_splits=numbers(rng.standard_normal(2 * inner)), tree_roots=[0, inner],
                leaf_targetids=[int(t) for t in rng.integers(0, targets, 2 * inner + 2)],
                leaf_weights=numbers(rng.standard_normal(2 * inner + 2)))


def trees():
    x = f32(7, 5)
    x[2, 1] = x[3, 3] = np.nan
    every = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    ml = "ai.onnx.ml"
    case("TreeEnsembleRegressor", [x], domain=ml, n_targets=1, base_values=[0.5], **forest("target_", 3, [0]))
    case("TreeEnsembleRegressor", [x], domain=ml, name="average", n_targets=3, aggregate_function="AVERAGE",
         base_values=list(f32(3)), **forest("target_", 2, [0, 1, 2], every))
    for name, transform in (("none", "NONE"), ("softmax", "SOFTMAX"), ("logistic", "LOGISTIC")):
        case("TreeEnsembleClassifier", [x], 2, domain=ml, name=name, classlabels_int64s=[3, 5, 7],
             post_transform=transform, **forest("class_", 2, [0, 1, 2]))
        case("TreeEnsembleClassifier", [x], 2, domain=ml, name="two_" + name, classlabels_int64s=[3, 5],
             post_transform=transform, **forest("class_", 2, [0]))
    whole = rng.integers(-2, 3, (7, 5)).astype(np.float32)
    for name, aggregate in (("average", 0), ("sum", 1), ("min", 2), ("max", 3)):
        case("TreeEnsemble", [x], domain=ml, name=name, aggregate_function=aggregate,
             **ensemble(3, 1, (0, 1, 2, 3, 4, 5), np.float32))
    case("TreeEnsemble", [x.astype(np.float64)], domain=ml, name="double", **ensemble(2, 3, (0, 3), np.float64))
    for transform in range(3):
        case("TreeEnsemble", [whole], domain=ml, name="sets%d" % transform, post_transform=transform,
             **ensemble(3, 2, (0, 6), np.float32))
    case("TreeEnsembleClassifier", [x], 2, domain=ml, name="positive", classlabels_int64s=[0, 1],
         **forest("class_", 2, [1], positive=True))


def graph_case(name, nodes, inputs, outputs, version=3):
    """A model of several nodes of ai.onnx.ml, (operator, inputs, outputs, attributes); outputs: names and element
    types, or the labels of a map."""
    graphs.append((name, nodes, inputs, outputs, version))


def labels():
    """Classifiers as scikit-learn's converter writes them: labels that are strings are made numbers at the end, since
    api_onnx reads no strings; lists of maps are tables."""
    x, names = f32(7, 5), ["cat", "dog", "owl"]
    number = ("LabelEncoder", ["l"], ["n"], dict(keys_strings=names, values_int64s=[4, 5, 6]))
    whole = [("n", onnx.TensorProto.INT64)]
    for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
        w = dict(coefficients=list(f32(15)), intercepts=list(f32(3)), post_transform=transform, multi_class=1)
        graph_case("LinearClassifier_" + transform, [("LinearClassifier", ["x"], ["l", "p"],
                                                      dict(w, classlabels_strings=names)), number,
                                                     ("ZipMap", ["p"], ["m"], dict(classlabels_strings=names))],
                   {"x": x}, whole + [("m", names)])
        graph_case("LinearClassifier_ints_" + transform, [("LinearClassifier", ["x"], ["n", "p"],
                                                           dict(w, classlabels_ints=[3, -1, 8])),
                                                          ("ZipMap", ["p"], ["m"],
                                                           dict(classlabels_int64s=[3, -1, 8]))],
                   {"x": x}, whole + [("m", [3, -1, 8])])
        two = dict(coefficients=list(f32(5)), intercepts=list(f32(1)), post_transform=transform)
        graph_case("LinearClassifier_two_" + transform, [("LinearClassifier", ["x"], ["n", "p"],
                                                          dict(two, classlabels_ints=[3, 8]))], {"x": x},
                   whole + [("p", onnx.TensorProto.FLOAT)])
        graph_case("TreeEnsembleClassifier_" + transform,
                   [("TreeEnsembleClassifier", ["x"], ["l", "p"], dict(classlabels_strings=names,
                     post_transform=transform, **forest("class_", 2, [0, 1, 2]))), number], {"x": x},
                   whole + [("p", onnx.TensorProto.FLOAT)])
    graph_case("LinearRegressor_logistic", [("LinearRegressor", ["x"], ["p"], dict(
        targets=2, coefficients=list(f32(10)), post_transform="LOGISTIC"))], {"x": x}, [("p", onnx.TensorProto.FLOAT)])
    graph_case("LabelEncoder_strings", [("LabelEncoder", ["x"], ["l"], dict(
        keys_int64s=[1, 2, 4], values_strings=names, default_string="dog")), number],
        {"x": rng.integers(0, 6, (3, 4))}, whole)
    graph_case("LabelEncoder_unused", [("LabelEncoder", ["x"], ["l"], dict(keys_int64s=[1, 2, 4],
                                                                           values_strings=names)), number],
               {"x": rng.integers(0, 6, (3, 4))}, whole)


def vectors():
    """Support vector machines of three, two and four classes, with and without probabilities, and regressors."""
    ml, x = "ai.onnx.ml", f32(9, 4)
    kernels = (("LINEAR", [0.5, 0, 3]), ("POLY", [0.5, 0.25, 3]), ("POLY", [0.5, 1, 2]), ("RBF", [0.3, 0, 3]),
               ("SIGMOID", [0.2, 0.1, 3]))
    for i, (kernel, numbers) in enumerate(kernels):
        shared = dict(kernel_type=kernel, kernel_params=numbers)
        for per_class in ([4, 2], [3, 1, 2], [2, 3, 1, 3]):
            k, v = len(per_class), sum(per_class)
            pairs = k * (k - 1) // 2
            a = dict(shared, vectors_per_class=per_class, support_vectors=list(f32(v * 4)),
                     coefficients=list(f32((k - 1) * v)), rho=list(f32(pairs)), classlabels_ints=[5, 3, 8, 1][:k])
            case("SVMClassifier", [x], 2, domain=ml, name="%s%d_%d" % (kernel, i, k), **a)
            proba = dict(prob_a=list(-np.abs(f32(pairs)) - 0.5), prob_b=list(f32(pairs) * 0.1))
            case("SVMClassifier", [x], 2, domain=ml, name="%s%d_%d_probabilities" % (kernel, i, k), **a, **proba)
            for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO") if kernel == "RBF" else ():
                case("SVMClassifier", [x], 2, domain=ml, name="%d_%s" % (k, transform), post_transform=transform, **a)
        case("SVMRegressor", [x], domain=ml, name="%s%d" % (kernel, i), n_supports=5, rho=list(f32(1)),
             support_vectors=list(f32(20)), coefficients=list(f32(5)), **shared)
    case("SVMRegressor", [x], domain=ml, name="one_class", n_supports=3, rho=[-0.5], support_vectors=list(f32(12)),
         coefficients=list(np.abs(f32(3))), one_class=1, kernel_type="RBF", kernel_params=[0.5, 0, 3])
    case("SVMRegressor", [x], domain=ml, name="linear", n_supports=0, rho=[0.75], coefficients=list(f32(4)),
         kernel_params=[0.5, 0, 3])
    for k in (2, 3):
        case("SVMClassifier", [x], 2, domain=ml, name="linear%d" % k, classlabels_ints=[5, 3, 8][:k], rho=[0.25],
             coefficients=list(f32(4 * k)), kernel_params=[0.5, 0, 3])
    case("SVMClassifier", [x], 2, domain=ml, name="linear_positive", classlabels_ints=[5, 3], rho=[0.25],
         coefficients=list(np.abs(f32(8))), kernel_params=[0.5, 0, 3], post_transform="PROBIT")


def columns():
    ml, x = "ai.onnx.ml", f32(4, 3)
    x[1, 2] = x[3, 0] = np.nan
    case("Imputer", [x], domain=ml, name="nan", imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    case("Imputer", [np.floor(f32(4, 3))], domain=ml, name="one", imputed_value_floats=[7.5],
         replaced_value_float=-1.0)
    case("Imputer", [rng.integers(0, 3, (4, 3))], domain=ml, name="ints", imputed_value_int64s=[7, -8, 9],
         replaced_value_int64=1)
    case("FeatureVectorizer", [f32(4, 3), f32(4, 2), f32(4, 1)], domain=ml, inputdimensions=[2, 4, 1])
    case("OneHotEncoder", [rng.integers(0, 5, (4, 3))], domain=ml, cats_int64s=[3, 1, 0, 2])
    case("OneHotEncoder", [rng.integers(0, 5, (4, 3)).astype(np.float32)], domain=ml, name="floats",
         cats_int64s=[3, 1])


def strings():
    """Integers become strings and integers again."""
    names, x = ["cat", "dog", "owl"], rng.integers(0, 6, (3, 4))
    whole = [("n", onnx.TensorProto.INT64)]
    graph_case("CategoryMapper", [
        ("CategoryMapper", ["x"], ["l"], dict(cats_int64s=[4, 1, 2], cats_strings=names, default_string="dog")),
        ("CategoryMapper", ["l"], ["n"], dict(cats_int64s=[7, 8], cats_strings=["dog", "cat"], default_int64=-5))],
        {"x": x}, whole)
    graph_case("OneHotEncoder_strings", [
        ("CategoryMapper", ["x"], ["l"], dict(cats_int64s=[4, 1, 2], cats_strings=names)),
        ("OneHotEncoder", ["l"], ["h"], dict(cats_strings=["owl", "cat"]))], {"x": x},
        [("h", onnx.TensorProto.FLOAT)])
    graph_case("LabelEncoder_1", [
        ("LabelEncoder", ["x"], ["l"], dict(classes_strings=names, default_string="none")),
        ("LabelEncoder", ["l"], ["n"], dict(classes_strings=["owl", "cat"], default_int64=-5))], {"x": x}, whole, 1)


def packed_attention(counts, rows, front, bias):
    """Models of sequences of so many tokens, padded to `rows` behind or in front, their inputs, and the result of
    Attention of padded sequences, as onnxruntime has no PackedAttention on processors."""
    B, H, D, C = len(counts), 2, 4, 6
    places = [b * rows + i + (rows - n if front else 0) for b, n in enumerate(counts) for i in range(n)]
    others = [i for i in range(B * rows) if i not in places]
    x, w, b = f32(len(places), C), f32(C, 3 * H * D), f32(3 * H * D)
    padded, mask = np.zeros((B * rows, C), np.float32), np.zeros(B * rows, np.int32)
    padded[places], mask[places] = x, 1
    scores = f32(B, H, rows, rows) if bias else None
    _, (y,) = expected("Attention", [padded.reshape(B, rows, C), w, b, mask.reshape(B, rows), None, scores], [True],
                       "com.microsoft", dict(num_heads=H))
    offsets = np.array(places + others, np.int32).reshape(B, rows)
    first = np.cumsum([0] + list(counts)).astype(np.int32)
    inputs = [x, w, b, offsets, first] + ([scores] if bias else [])
    model = model_of("PackedAttention", inputs, [True], "com.microsoft", dict(num_heads=H), [onnx.TensorProto.FLOAT])
    qkv = x @ w
    parts = [np.ascontiguousarray(p) for p in np.split(qkv, 3, axis=1)] + [b, offsets, first]
    parts += [scores] if bias else []
    heads = model_of("PackedMultiHeadAttention", parts, [True], "com.microsoft", dict(num_heads=H),
                     [onnx.TensorProto.FLOAT])
    together = np.ascontiguousarray(qkv.reshape(-1, 3, H, D).transpose(0, 2, 1, 3))
    one = [together, None, None] + parts[3:]
    packed = model_of("PackedMultiHeadAttention", one, [True], "com.microsoft", dict(num_heads=H),
                      [onnx.TensorProto.FLOAT])
    result = y.reshape(B * rows, -1)[places]
    one = [a for a in one if a is not None]
    return [("", model, inputs), ("_heads", heads, parts), ("_together", packed, one)], result


def write_packed(folder):
    written = 0
    for name, counts, rows, front, bias in (("behind", (3, 2), 3, False, False), ("front", (1, 4, 2), 5, True, False),
                                            ("bias", (2, 0, 3), 4, False, True)):
        models, result = packed_attention(counts, rows, front, bias)
        for suffix, model, inputs in models:
            write_case(folder, "test_PackedAttention_%s%s" % (name, suffix), model, inputs, [result])
            written += 1
    return written


def graph_model(nodes, inputs, outputs, version):
    made = [helper.make_node(op, i, o, domain="ai.onnx.ml", **a) for op, i, o, a in nodes]
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for n, x in inputs.items()]
    results = []
    for name, kind in outputs:
        if isinstance(kind, list):
            key = onnx.TensorProto.STRING if isinstance(kind[0], str) else onnx.TensorProto.INT64
            value = helper.make_map_type_proto(key, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
            results.append(helper.make_value_info(name, helper.make_sequence_type_proto(value)))
        else:
            results.append(helper.make_tensor_value_info(name, kind, None))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph(made, "g", given, results), opset_imports=opsets, ir_version=8)


def run_graph(nodes, inputs, outputs, version):
    model = graph_model(nodes, inputs, outputs, version)
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), ["CPUExecutionProvider"])
    results = session.run([n for n, _ in outputs], inputs)
    table = lambda rows, keys: np.array([[row[k] for k in keys] for row in rows], np.float32)
    return model, [table(r, kind) if isinstance(kind, list) else r for r, (_, kind) in zip(results, outputs)]


def quiet():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def write_case(folder, at, model, inputs, results):
    data = os.path.join(folder, "node", at, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    write(os.path.join(folder, "node", at, "model.onnx"), model)
    for kind, arrays in (("input", inputs), ("output", results)):
        for k, x in enumerate(arrays):
            write(os.path.join(data, "%s_%d.pb" % (kind, k)), numpy_helper.from_array(x))


def write(path, message):
    with open(path, "wb") as f:
        f.write(message.SerializeToString())


def model_of(op, inputs, outputs, domain, attributes, types):
    names = ["i%d" % i if x is not None else "" for i, x in enumerate(inputs)]
    results = ["o%d" % i if wanted else "" for i, wanted in enumerate(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    info = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, inputs) if n]
    result_info = [helper.make_tensor_value_info(n, t, None) for n, t in zip([r for r in results if r], types)]
    graph = helper.make_graph([node], "g", info, result_info)
    ml = 5 if op == "TreeEnsemble" else 3
    opsets = [helper.make_opsetid(*o) for o in (("", 17), ("com.microsoft", 1), ("ai.onnx.ml", ml))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def expected(op, inputs, outputs, domain, attributes):
    wanted = sum(outputs)
    quantized = {np.dtype(np.uint8): onnx.TensorProto.UINT8, np.dtype(np.int8): onnx.TensorProto.INT8}
    kinds = [onnx.TensorProto.FLOAT] * wanted
    if op.startswith("QLinear") or (op == "QGemm" and len(inputs) > 7):
        kinds = [quantized[inputs[2 if op == "QLinearConcat" else 0].dtype]]
    if inputs[0] is not None and inputs[0].dtype == np.float64:
        kinds[0] = onnx.TensorProto.DOUBLE
    if op == "EmbedLayerNormalization":
        kinds[1] = onnx.TensorProto.INT32
    if op in ("TreeEnsembleClassifier", "SVMClassifier") or {"values_int64s", "imputed_value_int64s"} & set(attributes):
        kinds[0] = onnx.TensorProto.INT64
    model = model_of(op, inputs, outputs, domain, attributes, kinds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), ["CPUExecutionProvider"])
    given = {"i%d" % i: x for i, x in enumerate(inputs) if x is not None}
    return model, session.run(None, given)


def main(folder):
    for part in (activations, norms, products, steps, attention, tables, trees, labels, vectors, columns,
                 strings):
        part()
    written = 0
    made = [("test_%s_%s" % (op, name), expected, (op, inputs, outputs, domain, attributes),
             [x for x in inputs if x is not None]) for op, inputs, outputs, domain, name, attributes in cases]
    made += [("test_" + name, run_graph, (nodes, inputs, outputs, version), list(inputs.values()))
             for name, nodes, inputs, outputs, version in graphs]
    for at, run, arguments, inputs in made:
        try:
            model, results = run(*arguments)
        except Exception as e:  # an operator that this onnxruntime does not have
            print("not made: %s: %s" % (at, str(e).splitlines()[0][:160]))
            continue
        write_case(folder, at, model, inputs, results)
        written += 1
    written += write_packed(folder)
    print("onnxruntime %s: %d models" % (onnxruntime.__version__, written))


main(sys.argv[1])
