// The bursts of one benchmark run, for peers in C and C++: the same work, the same gaps, the same measurement.
//
// Arguments: threads, steps of a task, gap in ns, tokens, layers of a token, layers to warm up, then the tasks of each
// burst of a layer. Output: wall and CPU nanoseconds without the gaps' own CPU, then the length of each burst.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static volatile uint64_t sink;

// A chain of multiplications: the next one needs the last, so it takes the same time in every compiler.
static inline void task(uint64_t steps) {
    uint64_t x = steps;
    for (uint64_t i = 0; i < steps; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(x));
    }
    sink = x;
}

typedef void (*burst_fn)(int tasks, uint64_t steps);

static int run_bursts(int argc, char **argv, burst_fn burst) {
    if (argc < 8) {
        fprintf(stderr, "usage: %s threads steps gap_ns tokens layers warmup tasks...\n", argv[0]);
        return 2;
    }
    uint64_t steps = strtoull(argv[2], 0, 10), gap = strtoull(argv[3], 0, 10);
    long tokens = atol(argv[4]), layers = atol(argv[5]), warmup = atol(argv[6]);
    int kinds = argc - 7;
    long bursts = tokens * layers * kinds;
    uint64_t *lengths = (uint64_t *)malloc(sizeof(uint64_t) * (size_t)(bursts > 0 ? bursts : 1));
    uint64_t wall = 0, cpu = 0, gap_cpu = 0;
    for (long layer = -warmup, at = 0; layer < tokens * layers; layer++) {
        if (layer == 0) {
            wall = clock_ns(CLOCK_MONOTONIC);
            cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
            gap_cpu = 0;
        }
        for (int k = 0; k < kinds; k++) {
            uint64_t start = clock_ns(CLOCK_MONOTONIC);
            burst(atoi(argv[7 + k]), steps);
            uint64_t end = clock_ns(CLOCK_MONOTONIC);
            if (layer >= 0) lengths[at++] = end - start;
            if (gap > 0) {
                uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
                while (clock_ns(CLOCK_MONOTONIC) - end < gap) {
                }
                gap_cpu += clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
            }
        }
    }
    wall = clock_ns(CLOCK_MONOTONIC) - wall;
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu - gap_cpu;
    printf("%llu %llu\n", (unsigned long long)wall, (unsigned long long)cpu);
    for (long i = 0; i < bursts; i++) printf("%llu\n", (unsigned long long)lengths[i]);
    return 0;
}
