/* Windows of signals, and Fourier transforms. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <string.h>

static const double circle = 6.28318530717958648;
#define DFT_MAX (INT64_C(1) << 40) /* elements of a transform */

/* arg 0 HannWindow, 1 HammingWindow, 2 BlackmanWindow */
bool onnx_signal_window(struct node *n)
{
    static const double weight[3][3] = {{0.5, 0.5, 0}, {25.0 / 46, 1 - 25.0 / 46, 0}, {0.42, 0.5, 0.08}};
    const double *w = weight[n->def->op->arg];
    int64_t size;
    kl_dtype d = onnx_dtype(onnx_attr_int32(n, "output_datatype", 1));
    if (!onnx_known_int(n, 0, &size))
        return false;
    if (size < 0 || size > 1 << 24 || d == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_SHAPE, "a window of %lld", (long long)size);
    struct array *a = array_new(KL_F64, 1, &size);
    double period = (double)(onnx_attr_int(n, "periodic", 1) ? size : size - 1);
    for (int64_t i = 0; a && i < size; i++) {
        double x = period > 0 ? circle * (double)i / period : 0;
        ((double *)a->data)[i] = w[0] - w[1] * cos(x) + w[2] * cos(2 * x);
    }
    kl_tensor t = onnx_tensor(n, a);
    return onnx_give(n, 0, d == KL_F64 ? t : kl_cast(t, d));
}

static double hertz_to_mel(double hertz) { return 2595 * log10(1 + hertz / 700); }

/* [bins of a spectrogram, filters]: triangles between neighbouring frequencies that are evenly spaced in mel, as ONNX
 * rounds them to bins. */
bool onnx_mel_weight_matrix(struct node *n)
{
    int64_t filters, length, rate;
    double lower, upper;
    if (!onnx_known_int(n, 0, &filters) || !onnx_known_int(n, 1, &length) || !onnx_known_int(n, 2, &rate) ||
        !onnx_known_float(n, 3, &lower) || !onnx_known_float(n, 4, &upper))
        return false;
    kl_dtype d = onnx_dtype(onnx_attr_int32(n, "output_datatype", 1));
    double low = hertz_to_mel(lower), high = hertz_to_mel(upper);
    if (filters < 1 || length < 1 || rate < 1 || filters > 1 << 20 || length > 1 << 24 || d == KL_DTYPE_COUNT ||
        !(low >= 0) || !(high >= low) || !((double)(length + 1) * (upper / (double)rate) < 1 << 30) ||
        (length / 2 + 1) * filters > 1 << 28)
        return onnx_fails(n, KL_ERR_ARGUMENT, "%lld filters of a transform of %lld elements at %lld a second, or their "
                          "lowest and highest frequency, are not possible", (long long)filters, (long long)length,
                          (long long)rate);
    int64_t bins = length / 2 + 1;
    struct array *a = array_new(KL_F64, 2, (int64_t[]){bins, filters});
    double *w = a ? a->data : NULL;
    for (int64_t i = 0; a && i < filters; i++) {
        int64_t edge[3]; /* bins: where the triangle begins, its peak, and where it ends */
        for (int k = 0; k < 3; k++) {
            double hertz = 700 * (pow(10, (low + (double)(i + k) * (high - low) / (double)(filters + 2)) / 2595) - 1);
            edge[k] = (int64_t)floor((double)(length + 1) * hertz / (double)rate);
        }
        for (int64_t j = edge[0]; j < edge[1] && j < bins; j++)
            w[j * filters + i] = (double)(j - edge[0]) / (double)(edge[1] - edge[0]);
        for (int64_t j = edge[1]; (j < edge[2] || j == edge[1]) && j < bins; j++)
            w[j * filters + i] = j > edge[1] ? (double)(edge[2] - j) / (double)(edge[2] - edge[1]) : 1;
    }
    kl_tensor t = onnx_tensor(n, a);
    return onnx_give(n, 0, d == KL_F64 ? t : kl_cast(t, d));
}

/* re, im (or kl_none): [..., length]; the result: [..., bins, 2] */
static kl_tensor onnx_fourier(kl_tensor re, kl_tensor im, int64_t bins, bool inverse)
{
    kl_tensor z = kl_fft(im.id ? kl_complex(re, im) : re, -1, inverse);
    return kl_stack(2, (kl_tensor[]){kl_narrow(kl_real(z), -1, 0, bins), kl_narrow(kl_imag(z), -1, 0, bins)}, -1);
}

/* Real or imaginary parts of the spectrum of a real signal of `length` elements, from its first length / 2 + 1 bins:
 * bin k is the conjugate of bin length - k. */
static kl_tensor whole_spectrum(kl_tensor bins, int64_t length, bool imaginary)
{
    int64_t given = length / 2 + 1, mirrored = length - given;
    int last = kl_rank(bins) - 1;
    if (mirrored < 1)
        return bins;
    kl_tensor rest = kl_flip(kl_narrow(bins, -1, 1, mirrored), 1, &last);
    return kl_concat(2, (kl_tensor[]){bins, imaginary ? kl_neg(rest) : rest}, -1);
}

bool onnx_dft(struct node *n)
{
    kl_tensor x = onnx_widened(n, 0);
    struct type t;
    int axis;
    int64_t length, at = onnx_attr_int32(n, "axis", 1);
    if (!onnx_type(n, 0, &t) || (n->def->opset >= 20 && onnx_has(n, 2) && !onnx_known_int(n, 2, &at)))
        return false;
    if (n->def->opset >= 20 && !onnx_has(n, 2))
        at = -2;
    if (t.rank < 2 || t.dims[t.rank - 1] < 1 || t.dims[t.rank - 1] > 2 ||
        !onnx_axis(n, at, t.rank - (at >= 0), &axis) || axis == t.rank - 1)
        return onnx_fails(n, KL_ERR_SHAPE, "the last axis is real, or real and imaginary");
    bool inverse = onnx_attr_int(n, "inverse", 0), half = onnx_attr_int(n, "onesided", 0), to_real = inverse && half;
    length = to_real ? 2 * (t.dims[axis] - 1) : t.dims[axis];
    if (onnx_has(n, 1) && !onnx_known_int(n, 1, &length))
        return false;
    if (length < 1 || length > DFT_MAX || (to_real && t.dims[t.rank - 1] != 2))
        return onnx_fails(n, KL_ERR_SHAPE, "a transform of %lld elements from bins of %lld numbers", (long long)length,
                          (long long)t.dims[t.rank - 1]);
    int64_t points = to_real ? length / 2 + 1 : length; /* of the operand that count */
    int order[KL_MAX_RANK], back[KL_MAX_RANK], r = t.rank;
    for (int i = 0; i < r - 1; i++) /* the axis behind the others */
        order[i] = i < axis ? i : i == r - 2 ? axis : i + 1;
    if (points < t.dims[axis])
        x = kl_narrow(x, axis, 0, points);
    if (points > t.dims[axis]) {
        int64_t high[KL_MAX_RANK] = {0};
        high[axis] = points - t.dims[axis];
        x = kl_pad(x, NULL, high, 0);
    }
    kl_tensor re = kl_permute(kl_squeeze(kl_narrow(x, -1, 0, 1), -1), order), im = kl_none;
    if (t.dims[r - 1] == 2)
        im = kl_permute(kl_squeeze(kl_narrow(x, -1, 1, 1), -1), order);
    for (int i = 0; i < r - 1; i++)
        back[i] = i < axis ? i : i == axis ? r - 2 : i - 1;
    back[r - 1] = r - 1;
    if (to_real) {
        kl_tensor z = kl_complex(whole_spectrum(re, length, false), whole_spectrum(im, length, true));
        return onnx_give_as(n, 0, kl_permute(kl_unsqueeze(kl_real(kl_fft(z, -1, true)), -1), back), t.dtype);
    }
    kl_tensor y = onnx_fourier(re, im, half ? length / 2 + 1 : length, inverse);
    return onnx_give_as(n, 0, kl_permute(y, back), t.dtype);
}

bool onnx_stft(struct node *n)
{
    kl_tensor x = onnx_widened(n, 0);
    struct type t, w;
    int64_t step, length;
    if (!onnx_type(n, 0, &t) || !onnx_known_int(n, 1, &step))
        return false;
    if (onnx_has(n, 3) ? !onnx_known_int(n, 3, &length) : !onnx_has(n, 2) || !onnx_type(n, 2, &w))
        return onnx_has(n, 3) || onnx_has(n, 2) ? false : onnx_fails(n, KL_ERR_ARGUMENT, "no window and no length");
    if (!onnx_has(n, 3))
        length = w.rank == 1 ? w.dims[0] : -1;
    if (t.rank == 2) { /* as onnxruntime takes real signals, too */
        x = kl_unsqueeze(x, 2);
        t = onnx_type_of(x);
    }
    if (t.rank != 3 || t.dims[2] < 1 || t.dims[2] > 2 || length < 1 || length > DFT_MAX || step < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "signals are [B, L], [B, L, 1] or [B, L, 2], the transforms of 1 to %lld "
                          "elements; here of %lld, by steps of %lld", (long long)DFT_MAX, (long long)length,
                          (long long)step);
    int64_t bins = onnx_attr_int(n, "onesided", 1) ? length / 2 + 1 : length;
    kl_tensor part[2] = {kl_none, kl_none};
    for (int i = 0; i < t.dims[2]; i++) {
        kl_tensor one = kl_squeeze(kl_narrow(x, 2, i, 1), 2);
        part[i] = kl_window(one, 1, length, step, 1);
        if (onnx_has(n, 2))
            part[i] = kl_mul(part[i], onnx_widened(n, 2));
    }
    return onnx_give_as(n, 0, onnx_fourier(part[0], part[1], bins, false), t.dtype);
}
