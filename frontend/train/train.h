/* Functions that the files of this folder share.  The folder includes public headers only. */
#ifndef KILN_TRAIN_TRAIN_H
#define KILN_TRAIN_TRAIN_H
#define KL_NO_CALL_SITES
#include <kiln/extend.h>
#include <kiln/train.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Releases a handle.  A handle whose trace has ended is no error. */
static inline void train_release(kl_tensor t)
{
    kl_status s = kl_check(t);
    if (s != KL_ERR_HANDLE && s != KL_ERR_TRACE)
        kl_release(t);
}

/* Updates of f16 and bf16 parameters, and their states, are computed in f32.  In a half float a moving average would
 * stop changing where its change is below the last digit, and squares of gradients would underflow. */
static inline kl_dtype train_compute(kl_dtype d) { return d == KL_F16 || d == KL_BF16 ? KL_F32 : d; }
static inline kl_tensor train_cast(kl_tensor t, kl_dtype d)
{
    return kl_dtype_of(t) == d ? t : kl_cast(t, d);
}
static inline kl_tensor train_widen(kl_tensor t)
{
    return train_cast(t, train_compute(kl_dtype_of(t)));
}

/* A hash function of 64 bits: the last step of SplitMix64 (Steele, Lea, Flood). */
static inline uint64_t train_mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
#endif
