/* Images and other grids: resizing, sampling at computed positions, more kinds of pooling.  Included by <kiln/kiln.h>.
 *
 * Gradients flow to the tensors, and to positions and boxes where these are floats and the sampling is not "nearest".
 * Halfs are computed in f32 and rounded once. */
#ifndef KILN_OPS_IMAGE_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- resizing ---- */

typedef enum kl_sampling { KL_SAMPLING_NEAREST, KL_SAMPLING_LINEAR, KL_SAMPLING_CUBIC } kl_sampling;
/* The position x in the tensor, in elements, from which element i of the result is taken; s: the scale, L: the tensor's
 * length, n: the result's.  HALF_PIXEL: (i + 1/2) / s - 1/2; _SYMMETRIC: shifted so that the centres agree where n is
 * not s L; _PYTORCH: 0 where n is 1.  CORNERS: i (L - 1) / (n - 1).  ASYMMETRIC: i / s.  TF_NEAREST: (i + 1/2) / s.
 * CROP: start (L - 1) + i (end - start) (L - 1) / (n - 1). */
typedef enum kl_resize_coordinates {
    KL_RESIZE_HALF_PIXEL, KL_RESIZE_HALF_PIXEL_SYMMETRIC, KL_RESIZE_HALF_PIXEL_PYTORCH, KL_RESIZE_CORNERS,
    KL_RESIZE_ASYMMETRIC, KL_RESIZE_TF_NEAREST, KL_RESIZE_CROP
} kl_resize_coordinates;
/* How the nearest element to a position is chosen: a half rounds down, or up; or always the element below, or above. */
typedef enum kl_resize_rounding {
    KL_RESIZE_HALF_DOWN, KL_RESIZE_HALF_UP, KL_RESIZE_FLOOR, KL_RESIZE_CEIL
} kl_resize_rounding;
typedef struct kl_resize_options {
    kl_sampling sampling;
    kl_resize_coordinates coordinates;
    kl_resize_rounding rounding;  /* of NEAREST */
    const double *scale;          /* one for each axis; NULL: length of the result / of the tensor */
    const double *start, *end;    /* of CROP, for each axis, as fractions of the length; NULL: 0 and 1 */
    double cubic;                 /* the coefficient of CUBIC; 0: -0.75 */
    bool antialias;               /* LINEAR, CUBIC: a wider filter where the result is smaller */
    bool exclude_outside;         /* positions outside have no weight; else they have the border element */
    bool fill;                    /* CROP: elements whose position is outside are `value` */
    double value;
} kl_resize_options;

/* a with n of its axes of these lengths (ONNX's Resize in all modes); options NULL: all zero.  Number dtypes but for
 * LINEAR and CUBIC, which need floats.  [SHAPE: a length below 1, of a or sizes; TYPE; ARGUMENT] */
KL_API_AT kl_tensor kl_resize(kl_tensor a, int naxes, const int *axes, const int64_t *sizes,
                              const kl_resize_options *options);

/* ---- sampling ---- */

/* The values outside of the tensor: zeros, the border's elements, or the elements mirrored at the border. */
typedef enum kl_sample_border { KL_SAMPLE_ZEROS, KL_SAMPLE_BORDER, KL_SAMPLE_REFLECTION } kl_sample_border;

/* a: [N, C, L1..Ln]  grid: floats [N, O..., n], n 1 to 3  ->  [N, C, O...]: a at these positions, the last axis first
 * (x, y, z); -1 and 1 are the borders' elements (corners), or half an element outside of them.  a: floats, or numbers
 * with NEAREST.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_grid_sample(kl_tensor a, kl_tensor grid, kl_sampling sampling, kl_sample_border border,
                                   bool corners);

typedef struct kl_roi_options {
    int64_t height, width;        /* of the result */
    int64_t samples;              /* along each axis of an element of it; 0: 2 */
    double scale;                 /* from the boxes' units to elements; 0: 1 */
    bool aligned;                 /* boxes are shifted by half an element; else none is below 1 element long */
    bool largest;                 /* the largest of the samples; else their mean */
} kl_roi_options;
/* a: [N, C, H, W]  boxes: [R, 4], left, top, right, bottom  image: integers [R]  ->  [R, C, height, width]: means of
 * bilinear samples of each box of its image; 0 more than an element outside.  Floats of one dtype.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_roi_align(kl_tensor a, kl_tensor boxes, kl_tensor image, const kl_roi_options *options);

/* ---- pools ---- */

/* The mean, or the largest, of windows that divide the last n axes (1..3) into `sizes` parts: elements i L / size,
 * rounded down, to (i + 1) L / size, rounded up.  Sizes of 1: a global pool.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_adaptive_avg_pool(kl_tensor a, int naxes, const int64_t *sizes);
KL_API_AT kl_tensor kl_adaptive_max_pool(kl_tensor a, int naxes, const int64_t *sizes);

/* kl_max_pool, and a new handle for the positions (i64) of the first largest element (or NaN) of each window: its index
 * in the last n axes, flattened, never one of the padding, even where all elements are the dtype's lowest number.  The
 * gradient flows to these elements.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_max_pool_indices(kl_tensor a, int naxes, const int64_t *window, const int64_t *stride,
                                        const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation,
                                        kl_tensor *indices);
/* The inverse: zeros with the last n axes of these sizes, except a's elements at their positions, integers of a's
 * shape.  Positions outside are ignored; of several elements at one position the last is kept.  [SHAPE, TYPE,
 * ARGUMENT] */
KL_API_AT kl_tensor kl_max_unpool(kl_tensor a, kl_tensor indices, int naxes, const int64_t *sizes);

#ifdef __cplusplus
}
#endif
#endif
#endif
