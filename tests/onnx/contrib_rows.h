/* The rows of api_model_contrib.c: operators of com.microsoft and ai.onnx.ml, and graphs that mean the same. */
#ifndef KILN_TESTS_ONNX_CONTRIB_ROWS_H
#define KILN_TESTS_ONNX_CONTRIB_ROWS_H

/* operands: "name=kind shape"; kinds: f floats, p positive floats, u and s bytes, i and l integers of 32 and 64 bits
 * below 3; in place of a shape `:` a scalar, `:7` this one, `=1,2` these numbers, [n].
 * one, other: nodes, a line each: "Op[domain] in in > out out; name=value name=value"; their results are a, b, c.  An
 * operand that a graph does not use is no input of it. */
struct row { const char *operands, *one, *other; int nout; double tolerance; };
#define MS "[com.microsoft]"
#define ML "[ai.onnx.ml]"
/* A tree of a branch and two leaves: the nodes' numbers, features, and what follows them, and the leaves of weights. */
#define STUMP(ids, features, yes, no, leaves) "nodes_treeids=0,0,0 nodes_nodeids=" ids " nodes_featureids=" features \
    " nodes_modes=BRANCH_LEQ,LEAF,LEAF nodes_values=0.25,0.0,0.0 nodes_truenodeids=" yes " nodes_falsenodeids=" no \
    " target_treeids=0,0 target_nodeids=" leaves " target_ids=0,0 target_weights=2.5,-1.5"
/* Two nodes, of which the second follows the first where that is false, and leaves of 10, 20 and 30. */
#define ENSEMBLE(features, modes) "nodes_featureids=" features " nodes_modes=" modes " nodes_splits=[f0.25,0.5] " \
    "nodes_truenodeids=0,1 nodes_trueleafs=1,1 nodes_falsenodeids=1,2 nodes_falseleafs=0,1 tree_roots=0, " \
    "leaf_targetids=0,0,0 leaf_weights=[f10,20,30]"
static const struct row rows[] = {
    {"x=f3,8 y=f8", "BiasGelu" MS " x y > a", "Add x y > t\nGelu t > a", 1, 1e-6},
    {"x=f3,8 y=f8", "FastGelu" MS " x y > a", "Add x y > t\nGelu t > a; approximate=tanh", 1, 1e-6},
    {"x=f3,8", "QuickGelu" MS " x > a; alpha=1.5", "Swish x > a; alpha=1.5", 1, 1e-6},
    {"x=f2,3,8 y=f2,3,8 g=f8 z=f8 w=f8", "SkipLayerNormalization" MS " x y g z w > a - - b; epsilon=1.0e-5",
     "Add x y > t\nAdd t w > b\nLayerNormalization b g z > a; epsilon=1.0e-5", 2, 1e-5},
    {"x=f2,3,8 y=f2,3,8 g=f8", "SkipSimplifiedLayerNormalization" MS " x y g > a; epsilon=1.0e-5",
     "Add x y > t\nRMSNormalization t g > a; epsilon=1.0e-5", 1, 1e-5},
    {"x=f2,3,8 g=f8", "SimplifiedLayerNormalization x g > a; epsilon=1.0e-5",
     "RMSNormalization x g > a; epsilon=1.0e-5", 1, 1e-5},
    {"x=i2,5 y=i2,5 p=l=0,1,2,3,4 t=f9,8 q=f6,8 r=f9,8 g=f8 z=f8",
     "EmbedLayerNormalization" MS " x y t q r g z > a; epsilon=1.0e-5",
     "Gather t x > e\nGather q p > f\nGather r y > h\nAdd e f > k\nAdd k h > m\n"
     "LayerNormalization m g z > a; epsilon=1.0e-5", 1, 1e-5},
    {"x=f2,4,3 y=f2,5,4 c=f=0.5", "FusedMatMul" MS " x y > a; transA=1 transB=1 alpha=0.5",
     "Transpose x > t; perm=0,2,1\nTranspose y > u; perm=0,2,1\nMatMul t u > v\nMul v c > a", 1, 1e-5},
    {"x=f3,2,4 y=f2,4,5", "FusedMatMul" MS " x y > a; transBatchA=1",
     "Transpose x > t; perm=1,0,2\nMatMul t y > a", 1, 1e-5},
    {"x=f3,4 y=f4,5 z=f5", "FusedGemm" MS " x y z > a; alpha=0.5 activation=LeakyRelu activation_alpha=0.25",
     "Gemm x y z > t; alpha=0.5\nLeakyRelu t > a; alpha=0.25", 1, 1e-5},
    {"x=f1,3,6,6 w=f4,3,3,3 y=f4 z=f1,4,6,6", "FusedConv" MS " x w y z > a; activation=Relu pads=1,1,1,1",
     "Conv x w y > t; pads=1,1,1,1\nAdd t z > u\nRelu u > a", 1, 1e-5},
    {"x=f2,6,5,3 w=f4,3,2,3 y=f4", "NhwcConv" MS " x w y > a; pads=1,0,1,1 strides=2,1",
     "Transpose x > t; perm=0,3,1,2\nTranspose w > u; perm=0,3,1,2\nConv t u y > v; pads=1,0,1,1 strides=2,1\n"
     "Transpose v > a; perm=0,2,3,1", 1, 1e-5},
    {"x=u2,4,6 w=s6,24 y=f24 s=p: t=p: z=u: v=s:", "QAttention" MS " x w y s t - z v > a; num_heads=2",
     "MatMulInteger x w z v > e\nCast e > f; to=1\nMul s t > g\nMul f g > h\nAdd h y > i\n"
     "Split i > j k l; axis=2 num_outputs=3\nAttention j k l > a; q_num_heads=2 kv_num_heads=2", 1, 1e-4},
    {"x=u2,3,4 s=p: z=u: y=u3,4 t=p: w=u: r=p: v=u:", "QLinearAdd" MS " x s z y t w r v > a",
     "DequantizeLinear x s z > e\nDequantizeLinear y t w > f\nAdd e f > g\nQuantizeLinear g r v > a", 1, 0},
    {"x=u2,3,4 s=p: z=u: y=u3,4 t=p: w=u: r=p: v=u:", "QLinearMul" MS " x s z y t w r v > a",
     "DequantizeLinear x s z > e\nDequantizeLinear y t w > f\nMul e f > g\nQuantizeLinear g r v > a", 1, 0},
    {"x=s2,5 s=p: z=s: r=p: v=s:", "QLinearLeakyRelu" MS " x s z r v > a; alpha=0.25",
     "DequantizeLinear x s z > e\nLeakyRelu e > f; alpha=0.25\nQuantizeLinear f r v > a", 1, 0},
    {"x=u2,5 s=p: z=u: r=p: v=u:", "QLinearSigmoid" MS " x s z r v > a",
     "DequantizeLinear x s z > e\nSigmoid e > f\nQuantizeLinear f r v > a", 1, 0},
    {"x=u2,5 s=p: z=u: r=p: v=u:", "QLinearSoftmax" MS " x s z r v > a; axis=-1 opset=13",
     "DequantizeLinear x s z > e\nSoftmax e > f\nQuantizeLinear f r v > a", 1, 0},
    {"x=u2,5 s=p: z=u: y=u2,3 t=p: w=u: r=p: v=u:", "QLinearConcat" MS " r v x s z y t w > a; axis=1",
     "DequantizeLinear x s z > e\nDequantizeLinear y t w > f\nConcat e f > g; axis=1\nQuantizeLinear g r v > a", 1, 0},
    {"x=u1,3,6,6 s=p: z=u: r=p: v=u:", "QLinearAveragePool" MS " x s z r v > a; kernel_shape=2,2 strides=2,2",
     "DequantizeLinear x s z > e\nAveragePool e > f; kernel_shape=2,2 strides=2,2\nQuantizeLinear f r v > a", 1, 0},
    {"x=u1,3,6,6 s=p: z=u: r=p: v=u:", "QLinearGlobalAveragePool" MS " x s z r v > a",
     "DequantizeLinear x s z > e\nGlobalAveragePool e > f\nQuantizeLinear f r v > a", 1, 0},
    {"x=u3,8 y=s8,5 s=p: t=p5 z=u: w=f5", "MatMulIntegerToFloat" MS " x y s t z - w > a",
     "MatMulInteger x y z > e\nCast e > f; to=1\nMul s t > g\nMul f g > h\nAdd h w > a", 1, 1e-5},
    {"x=u3,8 s=p: z=u: y=s8,5 t=p: r=p: v=u:", "QGemm" MS " x s z y t - - r v > a; alpha=0.5",
     "MatMulInteger x y z > e\nCast e > f; to=1\nMul s t > g\nMul f g > h\nConstant > k; value_float=0.5\n"
     "Mul h k > i\nQuantizeLinear i r v > a", 1, 1},
    {"x=u8,3 s=p: z=u: y=s5,8 t=p5 w=s5", "QGemm" MS " x s z y t w > a; transA=1 transB=1",
     "Transpose x > X; perm=1,0\nTranspose y > Y; perm=1,0\nMatMulInteger X Y z w > e\nCast e > f; to=1\n"
     "Mul s t > g\nMul f g > a", 1, 1e-5},
    {"x=f3,8 y=u8,5 t=p: z=u: w=f5", "DynamicQuantizeMatMul" MS " x y t z w > a",
     "DynamicQuantizeLinear x > e s q\nMatMulInteger e y q z > f\nCast f > g; to=1\nMul s t > h\nMul g h > k\n"
     "Add k w > a", 1, 1e-5},
    /* sequences of 3 and 2 tokens, of which the second one's padding stands behind, then in front */
    {"x=f5,6 w=f6,24 y=f24 n=i=0,1,2,3,4,5 m=i=0,3,5 s=l=2,3 p=l=0,1,2,3,4,4 q=l=2,3,6 l=i=3,2 r=l=-1,8 t=l=0,1,2,3,4",
     "Reshape n s > k\nPackedAttention" MS " x w y k m > a; num_heads=2",
     "Gather x p > X\nReshape X q > Y\nAttention" MS " Y w y l > Z; num_heads=2\nReshape Z r > A\nGather A t > a", 1,
     1e-5},
    {"x=f5,8 y=f5,8 z=f5,8 w=f24 n=i=0,1,2,4,5,3 m=i=0,3,5 s=l=2,3 p=l=0,1,2,3,3,4 q=l=2,3,8 l=i=1,1,1,0,1,1 r=l=-1,8 "
     "t=l=0,1,2,4,5",
     "Reshape n s > k\nPackedMultiHeadAttention" MS " x y z w k m > a; num_heads=2",
     "Gather x p > X\nReshape X q > B\nGather y p > Y\nReshape Y q > C\nGather z p > Z\nReshape Z q > D\n"
     "Reshape l s > E\nMultiHeadAttention" MS " B C D w E > F; num_heads=2\nReshape F r > G\nGather G t > a", 1, 1e-5},
    {"q=f2,4,24 k=f2,6,24 v=f2,6,24", "MultiHeadAttention" MS " q k v > a; num_heads=3",
     "Attention q k v > a; q_num_heads=3 kv_num_heads=3", 1, 1e-5},
    {"q=f2,4,24 k=f2,4,24 v=f2,4,24 s=f2,3,5,8 t=f2,3,5,8",
     "MultiHeadAttention" MS " q k v - - - s t > a b c; num_heads=3 unidirectional=1",
     "Attention q k v - s t > a b c; q_num_heads=3 kv_num_heads=3 is_causal=1", 3, 1e-5},
    {"q=f1,2,24 k=f1,2,8 v=f1,2,8 s=f1,1,5,8 t=f1,1,5,8 n=i=6 m=i:7",
     "GroupQueryAttention" MS " q k v s t n m > a b c; num_heads=3 kv_num_heads=1",
     "Attention q k v - s t > a b c; q_num_heads=3 kv_num_heads=1 is_causal=1", 3, 1e-5},
    {"q=f2,4,24 k=f2,4,8 v=f2,4,8 n=i=3,3 m=i:4",
     "GroupQueryAttention" MS " q k v - - n m > a; num_heads=3 kv_num_heads=1 local_window_size=2",
     "Attention q k v > a; q_num_heads=3 kv_num_heads=1 is_causal=1 left_window_size=1", 1, 1e-5},
    {"x=f2,4,24 c=f9,4 s=f9,4 p=l2,4", "RotaryEmbedding" MS " x p c s > a", "RotaryEmbedding x c s p > a; num_heads=3",
     1, 1e-6},
    {"x=f6,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,2", "1,0,0", "1,0,0", "2,0,0", "1,2"),
     "Constant > i; value_ints=1,\nGather x i > f; axis=1\nConstant > v; value_float=0.25\nLessOrEqual f v > c\n"
     "Constant > p; value_float=2.5\nConstant > q; value_float=-1.5\nWhere c p q > a", 1, 0},
    {"x=f6,3", "TreeEnsemble" ML " x > a; " ENSEMBLE("1,0", "[u0,3]"), /* x1 <= 0.25 ? 10 : x0 > 0.5 ? 20 : 30 */
     "Constant > i; value_ints=1,\nGather x i > f; axis=1\nConstant > v; value_float=0.25\nLessOrEqual f v > c\n"
     "Constant > k; value_ints=0,\nGather x k > g; axis=1\nConstant > w; value_float=0.5\nGreater g w > d\n"
     "Constant > p; value_float=10.0\nConstant > q; value_float=20.0\nConstant > r; value_float=30.0\n"
     "Where d q r > e\nWhere c p e > a", 1, 0},
    {"x=f=1,2,3,4", "Unsqueeze x 1 > t\nTreeEnsemble" ML " t > a; membership_values=[f2,4,nan,3,nan] "
     ENSEMBLE("0,0", "[u6,6]"), "Constant > t; value_floats=30.0,10.0,20.0,10.0\nUnsqueeze t 1 > a", 1, 0},
    {"x=l=0,3,1", "LabelEncoder" ML " x > a; keys_int64s=1,0 values_int64s=6,5 default_int64=-9",
     "Constant > a; value_ints=5,-9,6", 1, 0},
    {"x=l=0,3,1", "LabelEncoder" ML " x > a; keys_int64s=1,0 values_floats=0.5,2.5",
     "Constant > a; value_floats=2.5,-0.0,0.5", 1, 0},
    {"x=l=0,3,1", "LabelEncoder" ML " x > t; keys_int64s=1,0 values_strings=cat,dog\nIdentity t > u\n"
     "LabelEncoder" ML " u > a; keys_strings=dog,cat values_int64s=5,6 default_int64=-9",
     "Constant > a; value_ints=5,-9,6", 1, 0},
    {"i=l=2,0,1,2 z=l=0", "Constant > s; value_strings=cat,dog,owl\nArrayFeatureExtractor" ML " s i > t\n"
     "LabelEncoder" ML " t > a; keys_strings=owl,cat,dog values_int64s=5,6,7",
     "Constant > t; value_ints=5,6,7,5\nUnsqueeze t z > a", 1, 0},
    {"i=l=2,0,1,2", "Constant > s; value_strings=cat,dog,owl\nConstant > c; value_string=owl\nGather s i > t\n"
     "Equal t c > e\nConstant > d; value_strings=cat,\nWhere e d t > f\nConcat f d > g; axis=0\n"
     "LabelEncoder" ML " g > a; keys_strings=owl,cat,dog values_int64s=5,6,7",
     "Constant > a; value_ints=6,6,7,6,6", 1, 0},
    {"x=f4,2 w=f=1.5,-2,0.5,1,1,-1 s=l=3,2 z=f=0.5,0.25,-0.5",
     "LinearClassifier" ML " x > t b; classlabels_strings=cat,dog,owl coefficients=1.5,-2.0,0.5,1.0,1.0,-1.0 "
     "intercepts=0.5,0.25,-0.5 post_transform=SOFTMAX\nLabelEncoder" ML " t > a; keys_strings=cat,dog,owl "
     "values_int64s=0,1,2",
     "Reshape w s > t\nTranspose t > u\nMatMul x u > v\nAdd v z > y\nArgMax y > a; axis=1 keepdims=0\n"
     "Softmax y > b; axis=1", 2, 1e-6},
    {"x=f4,2", "Neg x > t\nZipMap" ML " t > a; classlabels_strings=cat,dog", "Neg x > a", 1, 0},
    {"x=f3,5 i=l=0,3,1", "ArrayFeatureExtractor" ML " x i > a", "Gather x i > a; axis=1", 1, 0},
    {"x=f3,5", "Normalizer" ML " x > a; norm=L2", "LpNormalization x > a", 1, 1e-6},
    {"x=f2,64 s=l:16 n=l:32 w=l=2", "STFT x s - n > a", "Unsqueeze x w > t\nSTFT t s - n > a", 1, 1e-6},
    {"x=f2,2,3 w=s1,3,16 r=s1,4,16 y=f1,32 s=p1 z=s1 t=p1,16 v=s1,16", /* inputs and each step's state are quantized */
     "DynamicQuantizeLSTM" MS " x w r y - - - - s z t v > a b c; hidden_size=4",
     "Cast w > d; to=1\nCast z > e; to=1\nSub d e > f\nMul f s > g\nTranspose g > h; perm=0,2,1\n"
     "Cast r > i; to=1\nCast v > j; to=1\nSub i j > k\nMul k t > l\nTranspose l > m; perm=0,2,1\n"
     "DynamicQuantizeLinear x > A B C\nDequantizeLinear A B C > D\nSplit D > E F; axis=0 num_outputs=2\n"
     "LSTM E h m y > G H I; hidden_size=4\n"
     "DynamicQuantizeLinear H > J K L\nDequantizeLinear J K L > M\n"
     "LSTM F h m y - M I > N b c; hidden_size=4\nConcat G N > a; axis=0", 3, 1e-5},
    {"x=f3,2 o=f=0.5,1.5 s=f=2,3", "Scaler" ML " x > a; offset=0.5,1.5 scale=2.0,3.0", "Sub x o > t\nMul t s > a", 1,
     1e-6},
    {"x=l=0,3,1", "LabelEncoder" ML " x > t; classes_strings=cat,dog\n"
     "LabelEncoder" ML " t > a; keys_strings=cat,dog values_int64s=5,6 default_int64=-9",
     "Constant > a; value_ints=5,-9,6", 1, 0},
    {"x=l=0,3,1", "CategoryMapper" ML " x > t; cats_int64s=1,0 cats_strings=cat,dog default_string=owl\n"
     "LabelEncoder" ML " t > a; keys_strings=dog,cat,owl values_int64s=5,6,7",
     "Constant > a; value_ints=5,7,6", 1, 0},
    {"x=l=0,3,1 k=l=1,0 t=l=1", "OneHotEncoder" ML " x > a; cats_int64s=1,0",
     "Unsqueeze x t > u\nEqual u k > c\nCast c > a; to=1", 1, 0},
    {"x=f4,3 v=f=1.5,2.5,3.5", "Relu x > t\n"
     "Imputer" ML " t > a; imputed_value_floats=1.5,2.5,3.5 replaced_value_float=0.0",
     "Relu x > t\nSub v v > o\nEqual t o > c\nWhere c v t > a", 1, 0},
    {"x=f4,3 y=f4,1 m=l=2,1", "FeatureVectorizer" ML " x y > a; inputdimensions=2,2",
     "Split x m > p q; axis=1\nSub y y > o\nConcat p y o > a; axis=1", 1, 0},
    {"x=f4,2 s=f=0.5,-1,0.25,2 v=l=2,2 c=f=1.5,-0.5 d=l=2,1 z=f=0.75 g=f=-0.5 w=l=1 r=l=2",
     "SVMRegressor" ML " x > a; n_supports=2 support_vectors=0.5,-1.0,0.25,2.0 coefficients=1.5,-0.5 rho=0.75, "
     "kernel_type=RBF kernel_params=0.5,0.0,3.0",
     "Reshape s v > S\nUnsqueeze x w > X\nSub X S > D\nMul D D > E\nReduceSum E r > F; keepdims=0\nMul F g > G\n"
     "Exp G > H\nReshape c d > C\nMatMul H C > M\nAdd M z > a", 1, 1e-6},
    {"x=f6,2 s=f=0.5,-1,0.25,2,-1.5,0.5 v=l=3,2 w=f=1.5,-1,0,-0.5,0,2,0,0.75,-1.25 k=l=3,3 z=f=0.25,-0.5,0.125 "
     "i=l=0,0,1 j=l=1,2,2 e=l=0,1,2 t=l=2 r=l=1",
     "SVMClassifier" ML " x > a b; classlabels_ints=0,1,2 vectors_per_class=1,1,1 rho=0.25,-0.5,0.125 "
     "support_vectors=0.5,-1.0,0.25,2.0,-1.5,0.5 coefficients=1.5,-0.5,0.75,-1.0,2.0,-1.25 kernel_params=1.0,0.0,3.0",
     "Reshape s v > S\nTranspose S > T\nMatMul x T > K\nReshape w k > W\nMatMul K W > M\nAdd M z > b\nSub z z > O\n"
     "Greater b O > P\nWhere P i j > Q\nUnsqueeze Q t > R\nEqual R e > U\nCast U > V; to=7\n"
     "ReduceSum V r > N; keepdims=0\nArgMax N > a; axis=1 keepdims=0", 2, 1e-5},
    {"x=f6,2", "SVMClassifier" ML " x > t p; classlabels_ints=7,9 vectors_per_class=1,1 rho=1.25, "
     "prob_a=-1.5, prob_b=0.25, support_vectors=1.0,0.0,0.0,1.0 coefficients=1.5,-0.5 "
     "kernel_params=1.0,0.0,3.0\nReduceSum p > a; keepdims=0",
     "Constant > t; value_floats=6.0,\nReduceSum t > a; keepdims=0", 1, 1e-5}, /* the sum of 6 rows' probabilities */
    {"x=f3,2 w=f=1.5,2.5 z=f=0.5", "LinearRegressor" ML " x > a; coefficients=1.5,2.5 intercepts=0.5,",
     "MatMul x w > t\nUnsqueeze t 1 > u\nAdd u z > a", 1, 1e-6},
};

#endif
