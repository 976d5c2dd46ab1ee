/* The floating-point environment of kernels and of all jobs of the pool: round to nearest, denormals kept, exceptions
 * masked.  Each write of the register, which drains the pipeline, takes as long as a quarter of a product of 16x16x16;
 * it mostly has these bits already.  A read waits for the operations before it, so a program enters once for all its
 * commands. */
#ifndef KILN_FLOAT_ENV_H
#define KILN_FLOAT_ENV_H
#if defined(__SSE__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <stdint.h>
#else
#include <fenv.h>
#endif

#if defined(__SSE__)
typedef unsigned fp_env;
static inline fp_env fp_enter(void)
{
    enum { DEFAULT = 0x1f80, FLAGS = 0x3f }; /* flags: exceptions that have happened */
    fp_env old = _mm_getcsr();
    if ((old & ~(unsigned)FLAGS) != DEFAULT) _mm_setcsr(DEFAULT);
    return old;
}
static inline void fp_leave(fp_env old) /* the caller's flags, too */
{
    if (_mm_getcsr() != old) _mm_setcsr(old);
}
#elif defined(__aarch64__)
typedef struct { uint64_t modes, flags; } fp_env; /* registers of their own: FPCR, FPSR */
static inline uint64_t fp_modes(void)
{
    uint64_t modes;
    __asm__ volatile("mrs %0, fpcr" : "=r"(modes));
    return modes;
}
static inline uint64_t fp_flags(void)
{
    uint64_t flags;
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags));
    return flags;
}
static inline void fp_set_modes(uint64_t modes) { __asm__ volatile("msr fpcr, %0" : : "r"(modes)); }
static inline fp_env fp_enter(void)
{
    fp_env old = {fp_modes(), fp_flags()};
    if (old.modes) fp_set_modes(0);
    return old;
}
static inline void fp_leave(fp_env old)
{
    if (fp_modes() != old.modes) fp_set_modes(old.modes);
    if (fp_flags() != old.flags) __asm__ volatile("msr fpsr, %0" : : "r"(old.flags));
}
#else
typedef fenv_t fp_env;
static inline fp_env fp_enter(void)
{
    fp_env old;
    fegetenv(&old);
    fesetenv(FE_DFL_ENV);
    return old;
}
static inline void fp_leave(fp_env old) { fesetenv(&old); }
#endif

#endif
