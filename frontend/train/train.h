/* What the files of this folder share.  They see the public headers alone. */
#ifndef KILN_TRAIN_TRAIN_H
#define KILN_TRAIN_TRAIN_H
#define KL_NO_CALL_SITES
#include <kiln/kiln.h>
#include <math.h>
#include <string.h>

/* Releases what can be; a handle that ended with its trace is no error. */
static inline void train_release(kl_tensor t)
{
    kl_status s = kl_check(t);
    if (s != KL_ERR_HANDLE && s != KL_ERR_TRACE)
        kl_release(t);
}

/* A random function of 64 bits: the last step of SplitMix64 (Steele, Lea, Flood). */
static inline uint64_t train_mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
#endif
