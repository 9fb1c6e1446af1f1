// The bursts of one benchmark run, for peers in C and C++: the same work, the same gaps, the same measurement.
//
// Arguments: threads, steps of a task, gap in ns, tokens, layers of a token, layers to warm up, then the tasks of each
// burst of a layer. Output: wall and CPU nanoseconds without the gaps' own CPU, samples of CPU time in tasks, in the vDSO's clock and
// in the rest, then the length of each burst.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// While a timer of CPU time is set, the clock of the process stands still between two ticks; this account goes on.
static uint64_t process_cpu_ns(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    uint64_t us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u;
    return (us + (uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * 1000u;
}

static volatile uint64_t sink;

// What the running thread does, by a signal for each tick of CPU time: as in the benchmark's own process.
enum { WAITING, TASK, ELSEWHERE };
static __thread volatile int doing = WAITING;
static volatile uint64_t sampled[3];
static uintptr_t vdso_start, vdso_end;

static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    int did = doing;
    if (did == ELSEWHERE) return;
    ucontext_t *interrupted = (ucontext_t *)context;
#if defined(__x86_64__)
    uintptr_t at = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t at = (uintptr_t)interrupted->uc_mcontext.pc;
#endif
    int kind = did == TASK ? 0 : at >= vdso_start && at < vdso_end ? 1 : 2;
    __atomic_fetch_add(&sampled[kind], 1, __ATOMIC_RELAXED);
}

static void sample(long microseconds) {
    if (vdso_end == 0) {
        char line[512];
        FILE *maps = fopen("/proc/self/maps", "r");
        while (maps && fgets(line, sizeof line, maps)) {
            unsigned long start, end;
            if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2) vdso_start = start, vdso_end = end;
        }
        if (maps) fclose(maps);
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = note;
        action.sa_flags = SA_SIGINFO | SA_RESTART;
        sigaction(SIGPROF, &action, 0);
    }
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_PROF, &timer, 0);
}

// A chain of multiplications: the next one needs the last, so it takes the same time in every compiler.
static inline void task(uint64_t steps) {
    doing = TASK;
    uint64_t x = steps;
    for (uint64_t i = 0; i < steps; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(x));
    }
    sink = x;
    doing = WAITING;
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
            sample(1000);
            wall = clock_ns(CLOCK_MONOTONIC);
            cpu = process_cpu_ns();
            gap_cpu = 0;
        }
        for (int k = 0; k < kinds; k++) {
            uint64_t start = clock_ns(CLOCK_MONOTONIC);
            burst(atoi(argv[7 + k]), steps);
            uint64_t end = clock_ns(CLOCK_MONOTONIC);
            if (layer >= 0) lengths[at++] = end - start;
            if (gap > 0) {
                uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
                doing = ELSEWHERE;
                while (clock_ns(CLOCK_MONOTONIC) - end < gap) {
                }
                doing = WAITING;
                gap_cpu += clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
            }
        }
    }
    wall = clock_ns(CLOCK_MONOTONIC) - wall;
    cpu = process_cpu_ns() - cpu - gap_cpu;
    sample(0);
    printf("%llu %llu\n", (unsigned long long)wall, (unsigned long long)cpu);
    printf("%llu %llu %llu\n", (unsigned long long)sampled[0], (unsigned long long)sampled[1], (unsigned long long)sampled[2]);
    for (long i = 0; i < bursts; i++) printf("%llu\n", (unsigned long long)lengths[i]);
    return 0;
}
