/* The beginning of tests that write models to a file and open them again. */
#ifndef KILN_TESTS_ONNX_MODEL_TEST_H
#define KILN_TESTS_ONNX_MODEL_TEST_H
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

/* Opens the device that the first argument names (cpu), and makes the file of mkstemp's pattern.  false: the program
 * ends with *status, because that failed, or because this build reads no ONNX. */
static bool model_test_begin(int argc, char **argv, char *pattern, kl_device *dev, int *status)
{
    *dev = kl_device_named(argc > 1 ? argv[1] : "cpu");
    device_now = kl_device_name(*dev);
    int fd = mkstemp(pattern);
    *status = 1;
    if (!CHECK(fd >= 0 && dev->id != 0))
        return false;
    close(fd);
    kl_clear_error();
    if (kl_model_open(*dev, pattern) || !strstr(kl_last_error(), "reads no ONNX"))
        return true;
    printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
    unlink(pattern);
    *status = 0;
    return false;
}

#endif
