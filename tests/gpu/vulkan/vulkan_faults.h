/* What vulkan_faults.c counts, and what it lets fail. */
#ifndef VULKAN_FAULTS_H
#define VULKAN_FAULTS_H
#include <stdbool.h>
#include <stdint.h>

struct vulkan_faults {
    unsigned allocations, submits, waits, recordings, barriers, dispatches;
    unsigned caches, filled;       /* pipeline caches that were made, and those with data */
    uint64_t largest;              /* bytes of the largest allocation */
    uint64_t full;                 /* allocations of so many bytes and more fail; 0: none does */
    bool no_pipelines, no_submits, lost;
};

#endif
